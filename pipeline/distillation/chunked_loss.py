"""A loss through a model's output layer without holding all logits: memory is bounded whatever vocabulary and batch.

Logits of N positions over V tokens are the largest tensors of training a small model: at V = 152,000 a batch of 4,000
positions has 2.4 GB of them, several times over. They are made, used and dropped a chunk at a time, and their gradient with
them, so that nothing is computed twice. Shapes: N positions, H hidden, V shared tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LossOf = Callable[
    [torch.Tensor, slice], torch.Tensor
]  # a chunk's logits (n, V), in the model's products' dtype, and which positions they are; (n,), fp32

_LOGITS = 1 << 21  # of a chunk at once: 8 MiB of fp32, which a cache holds better than memory
_LEAST_ROWS = 256  # of a chunk: with fewer, reading the head's weights would take longer than multiplying by them
_MULTIPLE = 64  # of a chunk's rows
_PROOF = 16  # tokens over which head and model must agree


def mean_loss(hidden_NH: torch.Tensor, head: nn.Linear, vocabulary: int, loss_of: LossOf) -> torch.Tensor:
    """The mean over N positions of `loss_of(logits, positions)`, and its gradients for `hidden_NH` and the head's weights."""
    loss: torch.Tensor = _MeanLoss.apply(hidden_NH, head.weight, head.bias, vocabulary, loss_of)  # type: ignore[no-untyped-call]
    return loss


def mean_loss_of_logits(logits_NV: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
    """The same from logits that are there already: for heads that are more than a matrix."""
    return loss_of(logits_NV, slice(0, len(logits_NV))).mean()


@torch.no_grad()
def plain_head(model: Any) -> nn.Linear | None:
    """The output layer, where the model's logits are that matrix times its decoder's last hidden state and nothing else."""
    head, config = model.get_output_embeddings(), model.config
    # Seen in logits only once they are large.
    if any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")):
        return None
    if type(head) is not nn.Linear or not hasattr(model, "get_decoder"):
        return None
    count = min(_PROOF, head.out_features)
    ids_BT = torch.arange(count, device=model.device)[None]
    decoder = model.get_decoder()
    if decoder is model:
        return None
    was_training = model.training
    model.eval()
    own = model(input_ids=ids_BT, use_cache=False).logits.float()
    ours = head(decoder(input_ids=ids_BT, use_cache=False).last_hidden_state).float()
    model.train(was_training)
    return head if torch.allclose(own, ours, rtol=1e-4, atol=1e-4 * float(own.abs().max())) else None


def _products(hidden_NH: torch.Tensor) -> torch.dtype:
    """What autocast multiplies in. Left to it, weights and gradients would be turned into that anew for every product."""
    kind = hidden_NH.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_NH.dtype


def _rows(count: int, vocabulary: int) -> int:
    """Of a chunk: about as many in each, and always one of few numbers, because a CPU's library prepares products anew for every
    shape it meets (20 ms a step where each batch had a last chunk of its own size)."""
    most = max(_LEAST_ROWS, _LOGITS // vocabulary, _MULTIPLE) // _MULTIPLE * _MULTIPLE
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
    ) -> torch.Tensor:
        count, dtype = len(hidden_NH), _products(hidden_NH)
        used_VH, seen_NH = weight_VH[:vocabulary].to(dtype), hidden_NH.to(dtype)
        d_hidden_NH = torch.empty_like(hidden_NH)
        d_weight_VH = torch.zeros_like(weight_VH) if weight_VH.requires_grad else None
        d_bias_V = torch.zeros_like(bias_V) if bias_V is not None and bias_V.requires_grad else None
        total, size = hidden_NH.new_zeros((), dtype=torch.float32), _rows(count, vocabulary)
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
        return *(None if grad is None else grad * d_total.to(grad.dtype) for grad in ctx.saved_tensors), None, None
