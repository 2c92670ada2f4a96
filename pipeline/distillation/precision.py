"""Mixed precision: weights are always fp32, matmuls may be bfloat16."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_FP32_ATTENTION = "sdpa_fp32"


def _fp32_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **more: Any
) -> tuple[torch.Tensor, None]:
    with torch.autocast(query.device.type, enabled=False):
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.float()
        attended, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **more)
    return attended, None


AttentionInterface.register(_FP32_ATTENTION, _fp32_attention)
AttentionMaskInterface.register(_FP32_ATTENTION, sdpa_mask)


@contextmanager
def fast_attention(model: Any, bf16: bool) -> Iterator[None]:
    """Use fp32 attention while a model is trained in bfloat16 on a CPU: there the backward pass of torch's bfloat16 attention
    takes five times as long as in fp32 (torch 2.13), longer than all other matmuls of a small draft together."""
    own = model.config._attn_implementation
    if not bf16 or model.device.type != "cpu" or own != "sdpa":
        yield
        return
    model.set_attn_implementation(_FP32_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
