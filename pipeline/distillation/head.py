"""A loss through a model's output layer without holding all logits: memory is bounded whatever vocabulary and batch.

Logits of N positions over V tokens are the largest tensors of training a small model: at V = 152,000 a batch of 4,000
positions has 2.4 GB of them, several times over. They are made, used and dropped a chunk at a time, and their gradient with
them, so that nothing is computed twice. Shapes: N positions, H hidden, V shared tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LossOf = Callable[
    [torch.Tensor, slice], torch.Tensor
]  # a chunk's logits (n, V), fp32, and which positions they are; (n,)

_LOGITS = 1 << 21  # of a chunk at once: 8 MiB of fp32, which a cache holds better than memory
_LEAST_ROWS = 256  # of a chunk: with fewer, reading the head's weights would take longer than multiplying by them
_PROOF = 16  # tokens over which head and model must agree


def mean_loss(hidden_NH: torch.Tensor, head: nn.Linear, vocabulary: int, loss_of: LossOf) -> torch.Tensor:
    """The mean over N positions of `loss_of(logits, positions)`, and its gradients for `hidden_NH` and the head's weights."""
    loss: torch.Tensor = _MeanLoss.apply(hidden_NH, head.weight, head.bias, vocabulary, loss_of)  # type: ignore[no-untyped-call]
    return loss


def mean_loss_of_logits(logits_NV: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
    """The same from logits that are there already: for heads that are more than a matrix."""
    return loss_of(logits_NV.float(), slice(0, len(logits_NV))).mean()


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
        count = len(hidden_NH)
        used_VH = weight_VH[:vocabulary].to(hidden_NH.dtype)
        d_hidden_NH = torch.empty_like(hidden_NH)
        d_weight_VH = torch.zeros_like(weight_VH) if weight_VH.requires_grad else None
        d_bias_V = torch.zeros_like(bias_V) if bias_V is not None and bias_V.requires_grad else None
        total, size = hidden_NH.new_zeros((), dtype=torch.float32), max(_LEAST_ROWS, _LOGITS // vocabulary)
        for begin in range(0, count, size):
            chunk = slice(begin, min(begin + size, count))
            logits_nV = hidden_NH[chunk] @ used_VH.t()
            if bias_V is not None:
                logits_nV = logits_nV + bias_V[:vocabulary].to(logits_nV.dtype)
            with torch.enable_grad():
                leaf_nV = logits_nV.float().requires_grad_()
                loss = loss_of(leaf_nV, chunk).sum() / count
            (d_logits_nV,) = torch.autograd.grad(loss, leaf_nV)
            total += loss.detach()
            d_logits_nV = d_logits_nV.to(hidden_NH.dtype)
            d_hidden_NH[chunk] = d_logits_nV @ used_VH
            if d_weight_VH is not None:
                d_weight_VH[:vocabulary] += (d_logits_nV.t() @ hidden_NH[chunk]).to(weight_VH.dtype)
            if d_bias_V is not None:
                d_bias_V[:vocabulary] += d_logits_nV.sum(0).to(d_bias_V.dtype)
        ctx.save_for_backward(d_hidden_NH, d_weight_VH, d_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(None if grad is None else grad * d_total.to(grad.dtype) for grad in ctx.saved_tensors), None, None
