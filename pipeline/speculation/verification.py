"""Which drafted tokens stand, and what is emitted after them. Pure functions on tensors.

Shapes: B sequences, G drafted tokens a round, V tokens. Distributions come as logs, already as the engine applies them
(`sampling.log_probabilities`); a greedy draft or target is simply one-hot.
"""

from typing import NamedTuple

import torch

from pipeline.speculation.sampling import draw


class Verdict(NamedTuple):
    """The outcome of one round."""

    accepted_B: torch.Tensor  # 0..G drafted tokens that stand
    next_B: torch.Tensor  # the token emitted after them: a correction, or the bonus after G acceptances


def acceptance(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """min(1, p / q) elementwise, from logs. 0 where p is 0; where only q is 0 the token could not have been drafted and
    the ratio is taken as its limit, 1. (Leviathan et al. 2023, algorithm 1.)"""
    ratio = torch.where(torch.isneginf(log_p), -torch.inf, log_p - log_q)
    return ratio.clamp(max=0.0).exp()


def verify_tokens(
    log_p_BGV: torch.Tensor, log_q_BGV: torch.Tensor, draft_BG: torch.Tensor, uniform_BG: torch.Tensor
) -> Verdict:
    """Token-level rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

    log_p_BGV: (B, G + 1, V), the target after each prefix; log_q_BGV: (B, G, V); draft_BG: (B, G) drawn from q;
    uniform_BG: (B, G + 1) in [0, 1), the last one for the token that follows. What is emitted has the law of p.
    """
    gamma = draft_BG.shape[1]
    index_BG1 = draft_BG.unsqueeze(-1)
    a_BG = acceptance(log_p_BGV[:, :gamma].gather(-1, index_BG1), log_q_BGV.gather(-1, index_BG1)).squeeze(-1)
    stands_BG = (uniform_BG[:, :gamma].to(a_BG.device) < a_BG).int().cumprod(1)
    accepted_B = stands_BG.sum(1)
    rows_B = torch.arange(len(accepted_B), device=accepted_B.device)
    p_BV = log_p_BGV[rows_B, accepted_B].exp()
    if gamma:
        q_BV = log_q_BGV[rows_B, accepted_B.clamp(max=gamma - 1)].exp()
        p_BV = torch.where((accepted_B < gamma).unsqueeze(-1), residual(p_BV, q_BV), p_BV)
    return Verdict(accepted_B, draw(p_BV, uniform_BG[:, -1].to(p_BV.device)))


def residual(p_BV: torch.Tensor, q_BV: torch.Tensor) -> torch.Tensor:
    """(p - q)+ up to its factor: what a rejected token is replaced from. Where rounding leaves no mass, p itself."""
    left_BV = (p_BV - q_BV).clamp(min=0.0)
    return torch.where(left_BV.sum(-1, keepdim=True) > 0, left_BV, p_BV)
