"""What a sparse loss needs of the draft's distributions, and the way back to its logits in closed form.

Of V log probabilities a loss on stored distributions reads K, one token's, and the mass of all others. The gradient of any
such loss is the draft's own distribution times a number a row, but for K + 1 entries: two passes over the logits, where
differentiating through log-softmax, copies and masks takes several more. Shapes: N positions, V tokens, K kept.
"""

from typing import Any, NamedTuple

import torch

_LEAST_MASS = 1e-30  # of what is not kept, where it is divided by


class Selected(NamedTuple):
    log_q_NK: torch.Tensor
    token_log_q_N: torch.Tensor
    rest_log_q_N: torch.Tensor  # log of the mass of all tokens that are not kept; -inf where there is none


def select(logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor) -> Selected:
    """log q of the tokens `ids_NK`, all different within a row, of `tokens_N`, and of everything but `ids_NK` together.

    Any constant a row may be added to the logits. Differentiable once.
    """
    return Selected(*_Select.apply(logits_NV, ids_NK, tokens_N))  # type: ignore[no-untyped-call]


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_q_NV = logits_NV.log_softmax(-1)
        log_q_NK = log_q_NV.gather(-1, ids_NK)
        token_log_q_N = log_q_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)
        # Kept tokens are taken out before the sum: 1 - sum(q) of what is kept cancels to 0 or below in fp32.
        rest_q_NV = log_q_NV.exp_().scatter_(-1, ids_NK, 0.0)
        rest_q_N = rest_q_NV.sum(-1)
        ctx.save_for_backward(rest_q_NV, rest_q_N, log_q_NK, ids_NK, tokens_N)
        return log_q_NK, token_log_q_N, rest_q_N.log()

    @staticmethod
    def backward(
        ctx: Any, d_kept_NK: torch.Tensor, d_token_N: torch.Tensor, d_rest_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        """d log q_k / d logit_i = [i = k] - q_i;  d log(rest) / d logit_i = [i not kept] q_i / rest - q_i."""
        rest_q_NV, rest_q_N, log_q_NK, ids_NK, tokens_N = ctx.saved_tensors
        all_N = d_kept_NK.sum(-1) + d_token_N + d_rest_N
        d_logits_NV = rest_q_NV * (d_rest_N / rest_q_N.clamp(min=_LEAST_MASS) - all_N).unsqueeze(-1)
        d_logits_NV.scatter_(-1, ids_NK, d_kept_NK - log_q_NK.exp() * all_N.unsqueeze(-1))
        d_logits_NV.scatter_add_(-1, tokens_N.unsqueeze(-1), d_token_N.unsqueeze(-1))
        return d_logits_NV, None, None
