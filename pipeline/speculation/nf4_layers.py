"""Linear layers of bitsandbytes' nf4 as `native.c` reads them. Knows no model.

Weights are numbers of 16 levels, two a byte, times a scale for every block of 64 inputs. At its first forward pass on a CPU with
AVX512-BF16 bitsandbytes lays them down in another order and rounds the scales to bfloat16. Both orders are read, without touching
them, and scales are always rounded so: what is computed must not depend on whether a pass came before.
"""

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 64


@dataclass(frozen=True)
class NF4Linear:
    """As the structure `linear` of `native.c` says."""

    codes: torch.Tensor  # (out, in / 64, 32), uint8
    table: torch.Tensor  # (out, in / 64), int16 that C reads as uint16
    tables: torch.Tensor  # (tables, 16), bf16: level times scale, rounded once; as many as there are different scales


def is_nf4(linear: Any) -> bool:
    """Whether `read` can read it."""
    state: Any = getattr(linear.weight, "quant_state", None)
    return (
        type(linear).__name__ == "Linear4bit"
        and getattr(state, "quant_type", None) == "nf4"
        and state.blocksize == BLOCK
        and tuple(state.shape) == (linear.out_features, linear.in_features)
        and linear.in_features % BLOCK == 0
        and linear.weight.device.type == "cpu"
    )


def read(linear: Any) -> NF4Linear:
    """Of a layer that `is_nf4`."""
    state = linear.weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        codes_OI, scales = _repacked(linear), state.absmax.t()
    else:
        codes_OI, scales = _as_saved(linear), _scales(state)
    codes_OBI = codes_OI.view(linear.out_features, -1, 2, BLOCK // 2)
    packed = codes_OBI[:, :, 0] | codes_OBI[:, :, 1] << 4
    shape = (linear.out_features, linear.in_features // BLOCK)
    different, table = scales.bfloat16().reshape(shape).unique(return_inverse=True)
    tables = (different.float()[:, None] * state.code.float()).bfloat16()
    return NF4Linear(packed.contiguous(), table.to(torch.int32).to(torch.int16).contiguous(), tables.contiguous())


def _as_saved(linear: Any) -> torch.Tensor:
    """(out, in) numbers; the first of two is in the high half."""
    bytes_N = linear.weight.data.reshape(-1).view(torch.uint8)
    return torch.stack([bytes_N >> 4, bytes_N & 15], dim=1).view(linear.out_features, linear.in_features)


def _repacked(linear: Any) -> torch.Tensor:
    """(out, in) numbers, from blocks of 32 outputs: for every two inputs of all of them 32 bytes, the first outputs' numbers in
    the low halves and the last ones' in the high."""
    bytes_N32 = linear.weight.data.reshape(-1, 32)
    numbers = torch.cat([bytes_N32 & 15, bytes_N32 >> 4], dim=1).view(-1, linear.in_features // 2, 32, 2)
    return numbers.transpose(1, 2).reshape(linear.out_features, linear.in_features)


def _scales(state: Any) -> torch.Tensor:
    scales: torch.Tensor = state.absmax
    if state.nested:
        from bitsandbytes.functional import dequantize_blockwise

        scales = dequantize_blockwise(state.absmax, state.state2) + state.offset
    return scales
