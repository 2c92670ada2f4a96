"""What an engine cannot load or shard, found before a file is written. Reads configs, loads no weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.engines.facts import FACTS, EngineFacts, loads
from pipeline.engines.heads import why_unserved
from pipeline.errors import UsageError
from pipeline.export.target import head_traits, target_config, target_width
from pipeline.models.model_json import config_values
from pipeline.registry.named import Draft

_STATE_SPACE = ("mamba", "rwkv", "xlstm")  # model types whose state cannot be taken back after a rejection
_FP8_BLOCK = 128
NUMBERS = ("float32", "bfloat16", "float16")  # dtypes of a target that is not quantized


def require_engine(engine: str) -> EngineFacts:
    """The facts of an engine that export writes for. UsageError for one that takes no such draft, in two lines."""
    facts = FACTS[engine]
    if facts.instead:
        raise UsageError(*facts.instead.splitlines())
    return facts


def require_loadable(draft: Draft, engine: str, tensor_parallel: int) -> None:
    """UsageError for a draft, a sampling or a parallelism that the engine refuses."""
    facts = require_engine(engine)
    if (reason := why_unserved(engine, draft.kind.name)) is not None:
        raise UsageError(f"--engine {engine}: {reason}; its files are in `understudy show`")
    traits = head_traits(draft) if draft.kind.reads_states else ()
    if (reason := why_unserved(engine, draft.kind.name, traits)) is not None:
        raise UsageError(f"--engine {engine}: {reason}")
    if not loads(engine, draft.variant):
        raise UsageError(
            f"--engine {engine}: {facts.title} does not load a draft in {draft.variant} (it loads "
            f"{', '.join(facts.loads)}); choose another --variant"
        )
    _check_dtype(draft, engine, facts)
    if engine == "vllm" and draft.config.sampling.min_p:
        raise UsageError(
            f"sampling.min_p = {draft.config.sampling.min_p:g}: vLLM does not apply min_p while it speculates "
            "(vLLM issue 42744); serve without min_p, and examine again with sampling.min_p 0"
        )
    of_draft = None if draft.kind.reads_states else config_values(draft.directory)  # a head has its target's sizes
    if of_draft is not None:
        _check_architecture(of_draft, facts.title)
    if facts.equal_widths and target_width(draft) is None:
        raise UsageError(
            f"--engine {engine}: it compares the logits' widths of target and draft, and the target's is not known; put the "
            f"target's config.json into {draft.pair.path('target')}"
        )
    if engine != "llama.cpp" and tensor_parallel > 1:
        if engine == "transformers":
            raise UsageError("--tensor-parallel: transformers places models with device_map; leave the option out")
        for role, config in (("target", target_config(draft)), ("draft", of_draft)):
            for problem in (
                [] if config is None else _indivisible(text_config(config), tensor_parallel, draft.variant, role)
            ):
                raise UsageError(f"--tensor-parallel {tensor_parallel}: {problem}")


def _check_dtype(draft: Draft, engine: str, facts: EngineFacts) -> None:
    """A variant whose layers do not compute in the dtype that the engine would run the draft in."""
    served, possible = draft.pair.dtype("target"), facts.computes_in.get(draft.variant)
    if not facts.in_target_dtype or possible is None or served not in NUMBERS or served in possible:
        return
    raise UsageError(
        f"--engine {engine}: {facts.title} runs the draft in the target's dtype, {served}, and refuses {draft.variant} in it "
        f"(it takes {' or '.join(possible)}); choose another --variant, or set pair.target.dtype to the dtype that is served and "
        "run again"
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the decoder; a multimodal model nests it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _check_architecture(config: Mapping[str, Any], title: str) -> None:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise UsageError(
            f"the draft's config.json names no architecture, and {title} chooses the model by it; add `architectures`"
        )
    kind = str(text_config(config).get("model_type", ""))
    if kind.startswith(_STATE_SPACE):
        raise UsageError(
            f"the draft is a {names[0]}: {title} cannot take back its state after a rejected token; "
            "use a draft with attention only"
        )


def _indivisible(config: Mapping[str, Any], ranks: int, variant: str, role: str) -> Iterator[str]:
    """What of the model cannot be divided among the ranks."""
    advice = "choose a size that divides it, or a draft of another shape"
    heads = int(config.get("num_attention_heads") or 0)
    groups = int(config.get("num_key_value_heads") or heads)
    if heads % ranks:
        yield f"the {role} has {heads} attention heads; {advice}"
    if groups % ranks and ranks % groups:
        yield f"the {role} has {groups} key-value heads; {advice}"
    width = int(config.get("intermediate_size") or 0)
    if width % ranks:
        yield f"the {role}'s MLP is {width} wide; {advice}"
    if role == "draft" and variant == "fp8" and width // ranks % _FP8_BLOCK:
        block = f"not a multiple of the FP8 block size ({_FP8_BLOCK})"
        yield f"a rank would get {width // ranks} of the draft's MLP, {block}; {advice}"
