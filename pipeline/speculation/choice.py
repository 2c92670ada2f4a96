"""Chooses the forward of a model: the fastest one that is proved on this model, in this dtype, on this device.

The choice is made again wherever a model is loaded for decoding. A draft is trained and quantized after the pair stage, and
dtype, device and library versions differ between machines, so a stored answer could be wrong. A proof costs a few short passes
and is made once for a loaded model.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pipeline.errors import UsageError
from pipeline.models.fixed_rope import fix_rope
from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.placement import input_device
from pipeline.speculation.compiled_forward import CompiledForward
from pipeline.speculation.forward import Forward, RecordedForward
from pipeline.speculation.graphed_forward import GraphedForward
from pipeline.speculation.hidden_states import StateRecorder
from pipeline.speculation.length_numbers import short_lengths
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.model_forward import ModelForward
from pipeline.speculation.proof import ProofCase, Unproved, make_case, plain_pass, prove, short_windows
from pipeline.speculation.row_forward import RowForward

_Make = Callable[[Any, int], "Forward | None"]


def _compiled(model: Any, vocabulary: int) -> Forward | None:
    forward = LlamaForward.of(model, vocabulary)
    if forward is not None:
        forward.compiled = CompiledForward.of(model, vocabulary)
    return forward if forward is not None and forward.compiled is not None else None


def _graphed(model: Any, vocabulary: int) -> Forward | None:
    forward = LlamaForward.of(model, vocabulary) if input_device(model).type == "cuda" else None
    return GraphedForward(forward) if forward is not None and forward.plain else None


# Fastest first.
_WAYS: dict[str, _Make] = {
    "compiled": _compiled,
    "graphs": _graphed,
    "llama": LlamaForward.of,
    "batch": ModelForward,
    "rows": lambda model, vocabulary: RowForward(model, vocabulary, "crop"),
    "rows, cache rebuilt": lambda model, vocabulary: RowForward(model, vocabulary, "rebuild"),
    "rows, no cache": lambda model, vocabulary: RowForward(model, vocabulary, "none"),
}
_LLAMA = ("compiled", "graphs", "llama")
_ASSUME_NO_WINDOW = ("rows", "rows, cache rebuilt", "rows, no cache")  # the model applies its windows itself
_remembered: "WeakKeyDictionary[Any, dict[Any, str]]" = WeakKeyDictionary()


def choose_forward(model: Any, vocabulary: int, llama_forward: bool = True) -> Forward:
    """The forward that `proved_way` names. `llama_forward=False` leaves out our own forwards."""
    if hasattr(model, "as_forward"):  # a head, or a model that is not computed here
        own: Forward = model.as_forward(vocabulary)
        return own
    forward = _WAYS[proved_way(model, vocabulary, llama_forward)](model, vocabulary)
    if forward is None:  # the model was changed since, such as placed on several devices
        del _remembered[model]
        return choose_forward(model, vocabulary, llama_forward)
    return forward


def recorded_forward(model: Any, vocabulary: int, layers: Sequence[int], llama_forward: bool = True) -> Forward:
    """A forward that records the hidden states of `layers` in each pass; compiled code keeps none. UsageError for a model whose
    states cannot be recorded."""
    recorder = StateRecorder(model, layers)
    way = "own" if hasattr(model, "as_forward") else proved_way(model, vocabulary, llama_forward)
    if way in _LLAMA and (ours := LlamaForward.of(model, vocabulary, layers)) is not None:
        return GraphedForward(ours) if way == "graphs" else ours
    if way == "batch":
        return RecordedForward(ModelForward(model, vocabulary), recorder)
    raise UsageError(
        f"hidden states of the architecture {architecture(model)} cannot be recorded while it decodes: its rows are computed "
        "one at a time, or elsewhere; use a draft that reads tokens alone"
    )


def proved_way(model: Any, vocabulary: int, llama_forward: bool = True) -> str:
    """The first way of computing `model` whose logits on ragged rows equal those of its own single passes: "compiled", "graphs"
    or "llama" (our own forward), "batch" (the model's own), or "rows" (the model's own with its own cache, one row at a time);
    "own" for a model that brings its forward. Raises UsageError, which names the architecture, if there is none."""
    if hasattr(model, "as_forward"):
        return "own"
    if isinstance(model, torch.nn.Module):
        fix_rope(model)
    known = _remembered.setdefault(model, {})
    key = (vocabulary, llama_forward, str(model.dtype), str(input_device(model)))
    if key not in known:
        known[key] = _prove(model, vocabulary, llama_forward)
    return known[key]


def passes_of(models: Iterable[Any], vocabulary: int) -> str:
    """How passes of few tokens are computed: "compiled" (in C, on the CPU), "graphs" (recorded once, as engines do), or "eager",
    one operator at a time, which costs a small model most of its pass."""
    ways = {proved_way(model, vocabulary) for model in models}
    (way,) = ways if len(ways) == 1 else ("eager",)
    return way if way in ("compiled", "graphs") else "eager"


def passes_differ(target: Any, drafts: Iterable[Any], vocabulary: int) -> bool:
    """Whether the target is computed in compiled code and a draft is not, such as a head."""
    own = passes_of([target], vocabulary)
    return own == "compiled" and any(passes_of([draft], vocabulary) != own for draft in drafts)


def target_passes(target: Any, vocabulary: int, are_recorded: bool) -> str:
    """The passes of a target; `are_recorded` where a draft reads its hidden states, of which compiled code keeps none."""
    way = passes_of([target], vocabulary)
    return "eager" if are_recorded and way == "compiled" else way


@torch.inference_mode()
def check_logits(model: Any, vocabulary: int) -> None:
    """UsageError if the model gives logits that are NaN or infinite, though its weights are numbers."""
    logits_BTV = plain_pass(model, [list(range(min(8, vocabulary)))], vocabulary)
    if bool((logits_BTV.isnan() | logits_BTV.isposinf()).any()):
        raise UsageError(
            "its logits are NaN or infinite, though its weights are numbers: correct its config.json (epsilons, RoPE, "
            "scales), or set another dtype"
        )
    if not bool(logits_BTV.isneginf().all(-1).any()) and bool((logits_BTV == logits_BTV[:1, :1, :1]).all()):
        raise UsageError(
            "its logits are the same for every token, as of weights that are all 0; take another checkpoint"
        )


def architecture(model: Any) -> str:
    """The model's type in transformers, such as `qwen3`."""
    return str(getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__)


def _prove(model: Any, vocabulary: int, llama_forward: bool) -> str:
    reason: str | None = None
    with short_windows(model, vocabulary) as short, short_lengths(model, vocabulary) as lengths:
        try:
            case = make_case(model, vocabulary, past_windows=short)
        except Exception as error:  # a model's own code may raise anything
            if is_out_of_memory(error):
                raise
            raise UsageError(_refusal(model, _line(error))) from error
        for name, make in _WAYS.items():
            # Where logits depend on the length, a batch would have to give the model the length of each row.
            batched = name not in _ASSUME_NO_WINDOW
            if (not batched or (short and not lengths)) and (llama_forward or name not in _LLAMA):
                forward = make(model, vocabulary)
                if forward is None:
                    continue
                reason = _failure(forward, case, vocabulary)
                if reason is None:
                    return name
    raise UsageError(_refusal(model, str(reason)))


def _failure(forward: Forward, case: ProofCase, vocabulary: int) -> str | None:
    """Why the forward cannot be used; None if it is proved."""
    try:
        prove(forward, case, vocabulary)
    except Exception as error:  # as above: masks, positions and caches that the model does not take
        if is_out_of_memory(error):
            raise
        return _line(error)
    return None


def _refusal(model: Any, reason: str) -> str:
    quantized = getattr(getattr(model, "config", None), "quantization_config", None)
    if quantized is not None:
        method = getattr(quantized, "quant_method", None)
        what = f"the architecture {architecture(model)}, quantized ({getattr(method, 'value', method)}),"
        remedy = "use a checkpoint in bfloat16, or serve a target (pair.target.source: server)"
        return f"{what} cannot be decoded: {reason}; {remedy}"
    return f"the architecture {architecture(model)} cannot be decoded: {reason}; use a model of another architecture"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, Unproved) else f"its own forward raised {type(error).__name__}: {text}"
