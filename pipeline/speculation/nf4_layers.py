"""nf4 layers of bitsandbytes, in the order that `llama_forward.c` reads. Does not depend on models.

A weight is a code of one of 16 levels, two codes a byte, times a scale for every block of 64 inputs. In its first forward pass
on a CPU with AVX512-BF16, bitsandbytes repacks the codes in another order and rounds the scales to bfloat16. Both orders can be
read, and nothing is written. Scales are always rounded to bfloat16: the result must not depend on an earlier forward pass.
"""

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 64


@dataclass(frozen=True)
class NF4Linear:
    """The struct `linear` of `llama_forward.c`."""

    codes: torch.Tensor  # (out, in / 64, 32), uint8
    table_index: torch.Tensor  # (out, in / 64), int16 that C reads as uint16
    tables: torch.Tensor  # (tables, 16), bf16: level times scale, rounded once; one table for each different scale


def is_nf4(linear: Any) -> bool:
    """Whether `read` can read this layer."""
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
    """The codes and tables of a layer for which `is_nf4` is true."""
    state = linear.weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        codes_OI, scales = _repacked(linear), state.absmax.t()
    else:
        codes_OI, scales = _as_saved(linear), _scales(state)
    codes_OBI = codes_OI.view(linear.out_features, -1, 2, BLOCK // 2)
    packed = codes_OBI[:, :, 0] | codes_OBI[:, :, 1] << 4
    shape = (linear.out_features, linear.in_features // BLOCK)
    different, table_index = scales.bfloat16().reshape(shape).unique(return_inverse=True)
    tables = (different.float()[:, None] * state.code.float()).bfloat16()
    return NF4Linear(packed.contiguous(), table_index.to(torch.int32).to(torch.int16).contiguous(), tables.contiguous())


def _as_saved(linear: Any) -> torch.Tensor:
    """Codes, (out, in). The first of two codes is in the high half of its byte."""
    bytes_N = linear.weight.data.reshape(-1).view(torch.uint8)
    return torch.stack([bytes_N >> 4, bytes_N & 15], dim=1).view(linear.out_features, linear.in_features)


def _repacked(linear: Any) -> torch.Tensor:
    """Codes, (out, in), from blocks of 32 outputs. A block has 32 bytes for every two inputs: codes of the first 16 outputs are
    in the low halves, codes of the last 16 outputs in the high halves."""
    bytes_N32 = linear.weight.data.reshape(-1, 32)
    codes = torch.cat([bytes_N32 & 15, bytes_N32 >> 4], dim=1).view(-1, linear.in_features // 2, 32, 2)
    return codes.transpose(1, 2).reshape(linear.out_features, linear.in_features)


def _scales(state: Any) -> torch.Tensor:
    scales: torch.Tensor = state.absmax
    if state.nested:
        from bitsandbytes.functional import dequantize_blockwise

        scales = dequantize_blockwise(state.absmax, state.state2) + state.offset
    return scales
