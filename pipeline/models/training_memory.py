"""What a training of all weights holds in memory: float32 weights, their gradients, the optimizer's state. Without activations:
a lower bound. Does not import torch."""

from typing import Literal

_GIB = 1 << 30
Optimizer = Literal["adamw", "muon"]
_WEIGHT, _GRADIENT = 4, 4
_STATE = {"adamw": 8, "muon": 4}  # muon: of its matrices; the others have more


def training_bytes(parameters: float, optimizer: Optimizer, parts: int = 1) -> float:
    """Bytes that each of `parts` processes holds that divide a model; 1: of a process with the whole model.

    The larger of a training step and of an examination of a divided model, for which each process holds the whole weights too.
    """
    state = _STATE[optimizer]
    step, between = _WEIGHT + _GRADIENT + state, _WEIGHT + state
    return parameters * (step if parts == 1 else max(step / parts, between / parts + _WEIGHT))


def gib(size: float) -> str:
    """A size of memory, for people."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.1f} MiB"
