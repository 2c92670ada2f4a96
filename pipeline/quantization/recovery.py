"""Training a draft through the rounding of its weights, so that it loses less when it is quantised. Knows no stage.

Forward passes see the weights as the variant will have them, and gradients go to the weights before rounding as if it were not
there (straight-through; Bengio et al. 2013): quantisation-aware distillation, short, from where the draft was trained to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from pipeline.quantization.fp8 import block_scales, spread, to_floats


class _Rounded(nn.Module):
    """A weight as the variant has it. Norms, embeddings and biases stay as they are."""

    def __init__(self, rounded: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._rounded = rounded

    def forward(self, weight_OI: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            error_OI = self._rounded(weight_OI) - weight_OI
        return weight_OI + error_OI


@contextmanager
def rounding(model: Any, variant: str, names: frozenset[str]) -> Iterator[None]:
    """Within it the linear layers `names` of `model` are as quantised to `variant`, and behind it what training made of them."""
    layers = [module for name, module in model.named_modules() if name in names]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", _Rounded(_ROUNDED[variant]))
    try:
        yield
    finally:
        for layer in layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def _int8(weight_OI: torch.Tensor) -> torch.Tensor:
    """LLM.int8(): 255 steps up to the largest weight of each row."""
    scale_O1 = weight_OI.abs().amax(1, keepdim=True).clamp_min(torch.finfo(weight_OI.dtype).tiny) / 127
    return (weight_OI / scale_O1).round() * scale_O1


def _int4(weight_OI: torch.Tensor) -> torch.Tensor:
    """nf4 with double quantisation, of weights in bf16, as `variants.quantize` has them."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    coded, state = quantize_4bit(weight_OI.bfloat16(), blocksize=64, compress_statistics=True, quant_type="nf4")
    rounded_OI: torch.Tensor = dequantize_4bit(coded, state).to(weight_OI.dtype)
    return rounded_OI


def _fp8(weight_OI: torch.Tensor) -> torch.Tensor:
    """8-bit floats, of weights in bf16."""
    scales = block_scales(weight_OI.bfloat16())
    return (to_floats(weight_OI.bfloat16(), scales).float() * spread(scales)).to(weight_OI.dtype)


_ROUNDED = {"int8": _int8, "int4": _int4, "fp8": _fp8}
