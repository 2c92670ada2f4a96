"""Which drafts an engine serves, by the table of engine facts. Torch-free: configs, pairs and exports ask the same."""

from collections.abc import Iterable, Mapping

from pipeline.drafts.kinds import KindName, Trait
from pipeline.engines.facts import FACTS

_OTHER_LAYER = "an untrained one with pair.draft.head.layer = eagle has none"
_TARGETS_EMBEDDING = (
    "the same one without embed_tokens.weight in its files takes the target's, here too; train it again then"
)
_OTHER_STATES = "pair.draft.head.layer_ids names others"
# What it is, and which heads have none.
_SAID: Mapping[Trait, tuple[str, str]] = {
    "norm_before_residual": ("the normed states in its residual stream (norm_before_residual)", _OTHER_LAYER),
    "qk_norm": ("layers of Qwen3 (q_norm, k_norm)", _OTHER_LAYER),
    "windows": ("attention windows in its layers", _OTHER_LAYER),
    "biases": ("biases in its layers", _OTHER_LAYER),
    "activation": ("another activation than SiLU", _OTHER_LAYER),
    "embedding": ("the target's embedding among the states that it reads (0 of its layer ids)", _OTHER_STATES),
    "last_layer": ("the output of the target's last layer among the states that it reads", _OTHER_STATES),
    "own_embedding": ("an embedding of its own", _TARGETS_EMBEDDING),
    "one_state": ("one hidden state instead of several", _OTHER_STATES),
    "part_of_vocabulary": ("a part of the vocabulary (token_map)", "untrained ones have all of it"),
}


def why_unserved(engine: str, kind: KindName, traits: Iterable[Trait] = ()) -> str | None:
    """Why the engine serves no such draft, and which draft or engine to take; None if it does."""
    facts = FACTS[engine]
    if kind not in facts.serving:
        reason = f" ({facts.unserved[kind]})" if kind in facts.unserved else ""
        others = ", ".join(name for name, facts in FACTS.items() if kind in facts.serving and not facts.instead)
        choice = f"; choose one of {others}" if others else f", only {', '.join(facts.serving)}"
        return f"a draft of kind {kind} is not exported for {facts.title}{reason}{choice}"
    lacks = facts.heads[kind].lacks if kind in facts.heads else ()
    for trait in traits:
        if trait in lacks:
            what, which = _SAID[trait]
            others = ", ".join(
                name for name, facts in FACTS.items() if kind in facts.heads and trait not in facts.heads[kind].lacks
            )
            return f"{facts.title} computes no {kind} head with {what}; choose {others}, or another head: {which}"
    return None
