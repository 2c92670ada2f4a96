"""Quantization-aware distillation: a short training with fake-quantized weights, to recover acceptance.

Does not depend on stages. The forward pass uses the rounded weights of the variant; gradients pass unchanged to the original
weights (straight-through estimator, Bengio et al. 2013). It starts from the trained draft.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from pipeline.quantization.fp8 import block_scales, expand_scales, to_fp8


class _FakeQuantized(nn.Module):
    """A weight rounded as in the variant. Norms, embeddings and biases are not rounded."""

    def __init__(self, rounded: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._rounded = rounded

    def forward(self, weight_OI: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            error_OI = self._rounded(weight_OI) - weight_OI
        return weight_OI + error_OI


@contextmanager
def fake_quantization(model: Any, variant: str, names: frozenset[str]) -> Iterator[None]:
    """Within this context the linear layers `names` of `model` are fake-quantized to `variant`; afterwards they have their
    trained weights in full precision."""
    layers = [module for name, module in model.named_modules() if name in names]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", _FakeQuantized(_QUANTIZERS[variant]))
    try:
        yield
    finally:
        for layer in layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


@torch.no_grad()
def round_weights(model: Any, variant: str, names: Collection[str]) -> None:
    """Round the weights of the linear layers `names` of `model` as `variant` does, in place."""
    for name, module in model.named_modules():
        if name in names:
            module.weight.copy_(_QUANTIZERS[variant](module.weight.float()))


def _fake_int8(weight_OI: torch.Tensor) -> torch.Tensor:
    """LLM.int8(): 255 levels per row, scaled by its largest absolute weight."""
    scale_O1 = weight_OI.abs().amax(1, keepdim=True).clamp_min(torch.finfo(weight_OI.dtype).tiny) / 127
    return (weight_OI / scale_O1).round() * scale_O1


def _fake_int4(weight_OI: torch.Tensor) -> torch.Tensor:
    """nf4 with double quantization of bf16 weights, as in `variants.quantize`."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    coded, state = quantize_4bit(weight_OI.bfloat16(), blocksize=64, compress_statistics=True, quant_type="nf4")
    rounded_OI: torch.Tensor = dequantize_4bit(coded, state).to(weight_OI.dtype)
    return rounded_OI


def _fake_fp8(weight_OI: torch.Tensor) -> torch.Tensor:
    """FP8 of bf16 weights."""
    scales = block_scales(weight_OI.bfloat16())
    return (to_fp8(weight_OI.bfloat16(), scales).float() * expand_scales(scales)).to(weight_OI.dtype)


_QUANTIZERS = {"int8": _fake_int8, "int4": _fake_int4, "fp8": _fake_fp8}
