"""The kinds of drafts: what each is, and what it needs. Torch-free: the config and the table of engine facts read it.

A kind is a line here and a file beside this one, which answers what `speculation/drafter.py` asks. What differs between kinds is
an attribute here or a method there; nothing else asks which kind a draft is.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

KindName = Literal["plain", "tli", "eagle3", "medusa", "prompt-lookup", "suffix-matching"]
HeadKindName = Literal["eagle3", "medusa"]  # of those that are trained from nothing
# What a head on hidden states may have that not every engine computes: the normed states in the residual stream, norms of queries
# and keys, attention windows, biases in its layers, another activation than SiLU, the target's embedding or the output of its
# last layer among the states that it reads, one state in the place of several, another embedding than the target's of the same
# width, and a part of the vocabulary.
Trait = Literal[
    "norm_before_residual",
    "qk_norm",
    "windows",
    "biases",
    "activation",
    "embedding",
    "last_layer",
    "one_state",
    "own_embedding",
    "part_of_vocabulary",
]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of draft. A draft proposes a chain of tokens, never a tree, and remembers nothing from one request to the next."""

    name: KindName
    summary: str
    has_weights: bool  # a checkpoint in a directory; otherwise its settings are all that it is
    # Whether q of a token depends on the text before it alone, and not on where the round starts: then one pass over a completion
    # gives every round, and the acceptance rate is the mean over all tokens. Otherwise it is over the tokens that were examined.
    by_token: bool
    depends_on_gamma: bool = False  # whether q depends on how many tokens the round drafts
    memory: Literal["none", "request"]  # what it remembers while a request is decoded
    greedy: bool = False  # whether engines take its likeliest token at every place, whatever the sampling settings
    vllm_method: str | None = None  # of `--speculative-config`, for a draft with weights
    maps_tokens: bool = False  # it keeps its own vocabulary, and its engine maps tokens one by one: `token_map.py`
    reads_states: bool = False  # hidden states of the target: it is made for one target, which is loaded with it
    unrolled: int | None = None  # places of a block that its training computes one after another, where nothing is set


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="plain",
            summary="a smaller language model with the target's vocabulary, one forward pass a token",
            has_weights=True,
            by_token=True,
            memory="request",
            vllm_method="draft_model",
        ),
        Kind(
            name="tli",
            summary="a smaller language model with another vocabulary, untrained; the engine maps shared tokens one by one",
            has_weights=True,
            by_token=True,
            memory="request",
            greedy=True,
            vllm_method="draft_model",
            maps_tokens=True,
        ),
        Kind(
            name="eagle3",
            summary="a decoder layer or more on hidden states of three of the target's layers, one pass a token",
            has_weights=True,
            by_token=False,
            memory="request",
            vllm_method="eagle3",
            reads_states=True,
            unrolled=3,
        ),
        Kind(
            name="medusa",
            summary="a small network for each place of the block, on the target's last hidden state",
            has_weights=True,
            by_token=False,
            memory="none",
            greedy=True,
            vllm_method="medusa",
            reads_states=True,
        ),
        Kind(
            name="prompt-lookup",
            summary="the continuation of the longest n-gram that occurred before in the prompt or the completion; no model",
            has_weights=False,
            by_token=False,
            memory="request",
        ),
        Kind(
            name="suffix-matching",
            summary="what followed most often after the longest suffix of the text that occurred before in it; no model",
            has_weights=False,
            by_token=False,
            memory="request",
        ),
    )
}
PLAIN, TLI, LOOKUP, SUFFIX = KINDS["plain"], KINDS["tli"], KINDS["prompt-lookup"], KINDS["suffix-matching"]
EAGLE3, MEDUSA = KINDS["eagle3"], KINDS["medusa"]
assert set(get_args(KindName)) == KINDS.keys()


def rates_compare(kinds: Iterable[KindName]) -> bool:
    """Whether acceptance rates of drafts of these kinds are of the same: over all tokens, or over those that one kind
    examines."""
    names = set(kinds)
    return len(names) == 1 or all(KINDS[kind].by_token for kind in names)


def rates_are_of(by_token: Collection[bool], gamma: int) -> str:
    """What the acceptance rates of a table are of, for people. `by_token`: of each draft, whether its rate is over all tokens;
    `gamma`: draft tokens of the rounds of the others."""
    examined = (
        f"over the tokens that rounds of {gamma} draft tokens examine (those accepted, and the first that is not)"
    )
    if all(by_token):
        return "Acceptance rates are over all tokens."
    if not any(by_token):
        return f"Acceptance rates are {examined}."
    return (
        f"Acceptance rates are over different tokens: of a plain draft over all, of heads and lookups {examined}; compare tokens "
        "/ target call."
    )
