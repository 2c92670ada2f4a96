"""The attention of a model in training: in fp32 where that is faster, and whether packed documents of a row can be kept apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.errors import UnderstudyError

_LENGTHS = (5, 7)  # of two documents
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


@torch.no_grad()
def supports_document_masking(model: Any, vocabulary: int) -> bool:
    """Whether a model supports document masking: restarting `position_ids` is enough that the second of two packed documents does
    not depend on the first. It is for attention layers; convolutions and recurrent states of hybrid models carry over from one
    document to the next.

    UnderstudyError for logits that are not finite."""
    first, second = _LENGTHS
    ids_BT = (torch.arange(first + second, device=model.device) * 7 % vocabulary)[None]
    position_ids = torch.cat([torch.arange(length, device=model.device) for length in _LENGTHS])[None]
    was_training = model.training
    model.eval()
    try:
        together = model(input_ids=ids_BT, position_ids=position_ids, use_cache=False).logits[:, first:].float()
        alone = model(input_ids=ids_BT[:, first:], use_cache=False).logits.float()
    except TypeError:  # no `position_ids` argument
        return False
    finally:
        model.train(was_training)
    if not bool(torch.isfinite(alone).all()):
        raise UnderstudyError(
            "the base draft gives NaN or infinite logits: its weights are damaged, or its dtype is too narrow; "
            "check pair.draft.source and pair.draft.dtype"
        )
    largest = float(alone.abs().max())
    return torch.allclose(together, alone, rtol=1e-3, atol=1e-3 * largest)
