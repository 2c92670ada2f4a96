"""The layers of a draft, and its loss, compiled by torch while it is trained on a GPU.

In mixed precision most of a step is not matrix products: it is norms, rotations, activations and casts, each a kernel that reads
and writes a whole tensor. torch compiles a layer into a few kernels, once for all layers of one kind. That takes a quarter of a
minute, so short trainings and small drafts are left as they are. What torch cannot compile is computed as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipeline.config.distill import DistillConfig
from pipeline.distillation.sharding import is_divided
from pipeline.distillation.trained_head import TrainedHead

_STEPS, _PARAMETERS = 200, 100_000_000  # of a training and a draft that are compiled


def compiles(model: nn.Module, settings: DistillConfig) -> bool:
    """Whether layers are compiled, where the settings leave it open. LoRA, a divided draft and recomputed activations change the
    layers themselves."""
    if isinstance(model, TrainedHead):
        return False
    if settings.compile is not None:
        return settings.compile
    if next(model.parameters()).device.type != "cuda" or settings.max_steps < _STEPS:
        return False
    changed = settings.lora is not None or settings.shard or is_divided(model) or settings.gradient_checkpointing
    return not changed and sum(weight.numel() for weight in model.parameters()) >= _PARAMETERS


def compiles_loss(device: torch.device, settings: DistillConfig) -> bool:
    """Whether the passes over the logits are compiled, of any draft and in seconds."""
    return device.type == "cuda" and (settings.max_steps >= _STEPS if settings.compile is None else settings.compile)


@contextmanager
def compiled_layers(model: Any, settings: DistillConfig) -> Iterator[None]:
    """Compile the layers of the model's decoder until the end of the block."""
    layers = _layers(model) if compiles(model, settings) else []
    if not layers:
        yield
        return
    for layer in layers:
        layer.compile()
    try:
        with torch._dynamo.config.patch(suppress_errors=True):
            yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """Within, compiled layers are computed as they are written: their passes without gradients would be compiled once more."""
    compiled = {module: made for module in model.modules() if (made := module._compiled_call_impl) is not None}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, made in compiled.items():
            module._compiled_call_impl = made


def _layers(model: Any) -> list[nn.Module]:
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)] if decoder is not None else []
    return [layer for layers in lists for layer in layers]
