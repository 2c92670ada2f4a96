"""Fused output layer and loss, computed in chunks: memory is bounded for any vocabulary and batch size.

The logits of N positions over V tokens are the largest tensors when a small model is trained: 2.4 GB for V = 152,000 and
4,000 positions, several times over. Here logits and their gradient are computed, used and freed chunk by chunk, so nothing is
computed twice. Shapes: N positions, H hidden, V shared tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pipeline.models.devices import computes_at_once

LossOf = Callable[
    [torch.Tensor, slice], torch.Tensor
]  # (a chunk's logits (n, V) in the matmul dtype, the slice of its positions) -> losses (n,), fp32

_LOGITS = 1 << 21  # logits of a chunk: 8 MiB in fp32, which fits into a CPU cache
_LOGITS_ON_DEVICE = 1 << 28  # 1 GiB in fp32: with fewer, a step adds to the gradient of the head's weights too often
_LEAST_ROWS = 256  # rows of a chunk: with fewer, reading the head's weights dominates the matmul
_MULTIPLE = 64  # rows of a chunk are a multiple of this


def mean_loss(
    hidden_NH: torch.Tensor, head: nn.Linear, vocabulary: int, loss_of: LossOf, width: int | None = None
) -> torch.Tensor:
    """The mean of `loss_of(logits, positions)` over N positions; differentiable in `hidden_NH` and the head's parameters.
    `width`: of what the loss makes of the logits, where that is wider."""
    parts = (hidden_NH, head.weight, head.bias, vocabulary, loss_of, width or vocabulary)
    loss: torch.Tensor = _MeanLoss.apply(*parts)  # type: ignore[no-untyped-call]
    return loss


def mean_loss_of_logits(logits_NV: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
    """The mean loss for given logits, for models whose head is more than a linear layer."""
    return loss_of(logits_NV, slice(0, len(logits_NV))).mean()


def _products(hidden_NH: torch.Tensor) -> torch.dtype:
    """The dtype of autocast's matmuls. Casting once here avoids casting weights and gradients for every chunk."""
    kind = hidden_NH.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_NH.dtype


def _rows(count: int, vocabulary: int, logits: int = _LOGITS) -> int:
    """Rows per chunk: about equal in all chunks and a multiple of 64, because CPU matmul libraries prepare kernels for every new
    shape (20 ms per step when each batch had a last chunk of a different size)."""
    most = max(_LEAST_ROWS, logits // vocabulary, _MULTIPLE) // _MULTIPLE * _MULTIPLE
    return -(-count // (-(-count // most) * _MULTIPLE)) * _MULTIPLE


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        vocabulary: int,
        loss_of: LossOf,
        width: int,
    ) -> torch.Tensor:
        count, dtype = len(hidden_NH), _products(hidden_NH)
        most = _LOGITS if computes_at_once(hidden_NH.device) else _LOGITS_ON_DEVICE
        used_VH, seen_NH = weight_VH[:vocabulary].to(dtype), hidden_NH.to(dtype)
        d_hidden_NH = torch.empty_like(hidden_NH)
        d_weight_VH = torch.zeros_like(weight_VH) if weight_VH.requires_grad else None
        d_bias_V = torch.zeros_like(bias_V) if bias_V is not None and bias_V.requires_grad else None
        total, size = hidden_NH.new_zeros((), dtype=torch.float32), _rows(count, width, most)
        seen_NH = functional.pad(seen_NH, (0, 0, 0, -count % size))
        for begin in range(0, count, size):
            rows, n = slice(begin, begin + size), min(size, count - begin)
            logits_nV = seen_NH[rows] @ used_VH.t()
            if bias_V is not None:
                logits_nV = logits_nV + bias_V[:vocabulary].to(logits_nV.dtype)
            with torch.enable_grad():
                leaf_nV = logits_nV[:n].detach().requires_grad_()
                loss = loss_of(leaf_nV, slice(begin, begin + n)).sum() / count
            (d_logits_nV,) = torch.autograd.grad(loss, leaf_nV)
            total += loss.detach()
            d_logits_nV = functional.pad(d_logits_nV, (0, 0, 0, size - n))
            d_hidden_NH[begin : begin + n] = (d_logits_nV @ used_VH)[:n]
            if d_weight_VH is not None:
                d_weight_VH[:vocabulary] += d_logits_nV.t() @ seen_NH[rows]
            if d_bias_V is not None:
                d_bias_V[:vocabulary] += d_logits_nV.sum(0).to(d_bias_V.dtype)
        ctx.save_for_backward(d_hidden_NH, d_weight_VH, d_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (
            *(None if grad is None else grad * d_total.to(grad.dtype) for grad in ctx.saved_tensors),
            None,
            None,
            None,
        )
