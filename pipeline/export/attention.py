"""What an engine needs where the attention layers of target and draft are of several kinds, by the table of engine facts. Reads
configs, loads no weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.engines.facts import EngineFacts
from pipeline.errors import UsageError
from pipeline.export.checks import NUMBERS
from pipeline.export.target import find_shape
from pipeline.models.attention_layers import AttentionLayers, mixture_of
from pipeline.registry.named import Draft

if TYPE_CHECKING:
    from pipeline.models.shape import Shape

_BYTES = {"float32": 4}  # of an element of keys and values; of other dtypes 2


@dataclass(frozen=True)
class StartOptions:
    """Words for the engine's start command, and why."""

    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def attention_options(draft: Draft, facts: EngineFacts) -> StartOptions:
    """The options that the pair's layers need. A pair that the engine was not run with is said. UsageError for one that it does
    not serve right. Of a head nothing is known but that it was run with targets of full attention."""
    target = find_shape(draft)
    if target is not None and draft.kind.reads_states:
        return StartOptions(
            notes=() if set(target.attention.by_window) <= {None} else (_unseen(target, "a head", facts),)
        )
    if target is None or facts.own_caches:
        return StartOptions()
    from pipeline.models.shape import read_shape  # loads torch

    own = read_shape(draft.directory, draft.config.pair.trust_remote_code)
    mixture = mixture_of(target.attention, own.attention)
    if mixture is None:
        return StartOptions()
    fact = facts.attention.get(mixture)
    if fact is None:
        return StartOptions(notes=(_unseen(target, _said(own.attention), facts),))
    layers = f"target: {_said(target.attention)}; draft: {_said(own.attention)}"
    if fact.advice:
        raise UsageError(
            f"{facts.title} {facts.checked} does not serve this pair ({layers}): {fact.effect}; {fact.advice}"
        )
    dtype = draft.pair.dtype("target")
    size = _BYTES.get(dtype, 2)
    note = f"attention layers of several kinds ({layers}): {facts.title} {fact.effect}"
    if fact.option:
        note += f"; so the start command has {fact.option}, which a command of your own needs too"
    if fact.keeps_all:
        note += f"; {_cost(target, own, size, dtype)}"
    note += f". Seen: {fact.seen}"
    return StartOptions((fact.option,) if fact.option else (), (note,))


def _unseen(target: "Shape", draft: str, facts: EngineFacts) -> str:
    return (
        f"no pair with such attention layers (target: {_said(target.attention)}; draft: {draft}) was run with {facts.title}: "
        "compare its answers at temperature 0 with and without the draft before you serve it (`understudy canary` does)"
    )


def _cost(target: "Shape", draft: "Shape", size: int, dtype: str) -> str:
    """The cost of a request as long as the target's context, in keys and values of both models."""
    tokens = target.context
    shapes = [model for model in (target, draft) if model.attention.count]
    element = [shape.cache_elements_per_token * size / shape.attention.count for shape in shapes]
    kept = sum(each * model.attention.kept(tokens) for each, model in zip(element, shapes, strict=True))
    every = sum(each * model.attention.count * tokens for each, model in zip(element, shapes, strict=True))
    number = dtype if dtype in NUMBERS else "16 bits"
    return (
        f"layers with a window then keep all tokens, so a request of {tokens:,} tokens takes {_size(every)} of KV cache in place "
        f"of {_size(kept)} ({number})"
    )


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


def _said(layers: AttentionLayers) -> str:
    """Such as `22 layers with a window of 1,024 tokens, 4 of full attention`."""
    kinds = sorted(layers.by_window.items(), key=lambda kind: (kind[0] is None, kind[0] or 0))
    words = [
        f"{count} with a window of {window:,} tokens" if window else f"{count} of full attention"
        for window, count in kinds
    ]
    words += [f"{layers.states} with a recurrent state"] if layers.states else []
    return ", ".join(words)
