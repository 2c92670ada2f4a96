"""Verification: which draft tokens are accepted, and the token emitted after them. Pure functions on tensors.

Shapes: B sequences, at most G draft tokens per round, V tokens. p and q are the distributions after the sampling settings
(`sampling.probabilities`). A row may have drafted fewer than G tokens: `drafted_B` is the count, the rest is padding.
"""

from typing import NamedTuple

import torch

from pipeline.speculation.sampling import draw


class VerificationResult(NamedTuple):
    """The outcome of one round."""

    accepted_B: torch.Tensor  # accepted draft tokens, 0..drafted
    next_B: torch.Tensor  # the token emitted after them: a correction, or the bonus token if all were accepted
    sums_B: torch.Tensor  # sum of the weights that token was drawn from, for `sampling.check_weight_sums`


def verify_greedy(best_BT: torch.Tensor, draft_BG: torch.Tensor, drafted_B: torch.Tensor) -> VerificationResult:
    """Temperature 0: a draft token is accepted if it is the target's argmax; the next token is the argmax after them.

    best_BT: (B, G + 1), the target's argmax after each prefix.
    """
    accepted_B = accepted_prefix(best_BT[:, : draft_BG.shape[1]] == draft_BG, drafted_B)
    next_B = best_BT.gather(1, accepted_B.unsqueeze(1)).squeeze(1)
    return VerificationResult(accepted_B, next_B, torch.ones_like(next_B))


def verify_tokens(
    p_BTV: torch.Tensor, q_BGV: torch.Tensor, draft_BG: torch.Tensor, drafted_B: torch.Tensor, uniform_BT: torch.Tensor
) -> VerificationResult:
    """Token-level rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

    p_BTV: (B, G + 1, V), the target after each prefix; q_BGV: (B, G, V); draft_BG: (B, G) drawn from q; uniform_BT:
    (B, G + 1) in [0, 1), the last one for the next token. Emitted tokens are distributed as p. A greedy draft is a one-hot
    q: its token is accepted with probability p(x), and the correction is drawn from the other tokens.
    """
    a_BG = acceptance(_at_tokens(p_BTV[:, :-1], draft_BG), _at_tokens(q_BGV, draft_BG))
    accepted_B = accepted_prefix(uniform_BT[:, :-1] < a_BG, drafted_B)
    return _with_next_token(accepted_B, None, p_BTV, q_BGV, drafted_B, uniform_BT[:, -1])


def verify_block(
    p_BTV: torch.Tensor, q_BGV: torch.Tensor, draft_BG: torch.Tensor, drafted_B: torch.Tensor, uniform_BT: torch.Tensor
) -> VerificationResult:
    """Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): accepts at least as many tokens on average.

    w_i = min(1, w_{i-1} p(x_i) / q(x_i)) is the weight of prefix i, which is kept with probability h_i. The longest kept
    prefix is emitted, followed by a token from (w_i p - q)+. Shapes as in `verify_tokens`.
    """
    gamma = draft_BG.shape[1]
    ratio_BG = torch.where(
        _at_tokens(q_BGV, draft_BG) > 0, _at_tokens(p_BTV[:, :-1], draft_BG) / _at_tokens(q_BGV, draft_BG), 0.0
    )
    w_B, w_BT = torch.ones_like(ratio_BG[:, 0]), [torch.ones_like(ratio_BG[:, 0])]
    for index in range(gamma):
        w_B = (w_B * ratio_BG[:, index]).clamp(max=1.0)
        w_BT.append(w_B)
    w_BG = torch.stack(w_BT[1:], dim=1)
    # After prefix i < drafted: left = sum (w_i p - q)+ at the next position; after all drafted tokens h is w itself.
    left_BG = (w_BG[:, :-1, None] * p_BTV[:, 1:-1] - q_BGV[:, 1:]).clamp(min=0).sum(-1)
    h_BG = left_BG / (left_BG + 1 - w_BG[:, :-1])
    h_BG = torch.cat([torch.nan_to_num(h_BG, nan=1.0), w_BG[:, -1:]], dim=1)  # 0 / 0: p = q and w = 1, so keep it
    position_G = torch.arange(1, gamma + 1, device=draft_BG.device)
    h_BG = torch.where(position_G == drafted_B[:, None], w_BG, h_BG)
    kept_BG = (uniform_BT[:, :-1] < h_BG) & (position_G <= drafted_B[:, None])
    accepted_B = (kept_BG * position_G).amax(1)
    w_kept_B = torch.stack(w_BT, dim=1).gather(1, accepted_B.unsqueeze(1))
    return _with_next_token(accepted_B, w_kept_B, p_BTV, q_BGV, drafted_B, uniform_BT[:, -1])


def verify_imposed(
    acceptance_G: torch.Tensor,
    p_BTV: torch.Tensor,
    q_BGV: torch.Tensor,
    draft_BG: torch.Tensor,
    drafted_B: torch.Tensor,
    uniform_BT: torch.Tensor,
) -> VerificationResult:
    """For timing only, not lossless: does the work of `verify_tokens`, then accepts draft token i with the given
    probability, so that models with random weights can be timed at the acceptance of trained ones."""
    result = verify_tokens(p_BTV, q_BGV, draft_BG, drafted_B, uniform_BT)
    accepted_B = accepted_prefix(uniform_BT[:, :-1] < acceptance_G[: draft_BG.shape[1]], drafted_B)
    return VerificationResult(accepted_B, result.next_B, result.sums_B)


def acceptance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """min(1, p / q) elementwise (Leviathan et al. 2023). 0 where p is 0; 1 where only q is 0, the limit of the ratio (such
    a token cannot be drafted)."""
    return torch.where(p > 0, (p / q).clamp(max=1.0), p * 0.0)  # p * 0 instead of 0 keeps NaN visible


def accepted_prefix(accepts_BG: torch.Tensor, drafted_B: torch.Tensor) -> torch.Tensor:
    """The number of accepted draft tokens before the first rejection, (B,)."""
    position_G = torch.arange(accepts_BG.shape[1], device=accepts_BG.device)
    return (accepts_BG & (position_G < drafted_B[:, None])).int().cumprod(1).sum(1)


def _at_tokens(p_BGV: torch.Tensor, tokens_BG: torch.Tensor) -> torch.Tensor:
    return p_BGV.gather(-1, tokens_BG.unsqueeze(-1)).squeeze(-1)


def _with_next_token(
    accepted_B: torch.Tensor,
    weight_B1: torch.Tensor | None,
    p_BTV: torch.Tensor,
    q_BGV: torch.Tensor,
    drafted_B: torch.Tensor,
    uniform_B: torch.Tensor,
) -> VerificationResult:
    """Draw the token after `accepted_B` draft tokens: from the residual (w p - q)+, or from p if all were accepted."""
    rows_B = torch.arange(len(accepted_B), device=accepted_B.device)
    p_BV = p_BTV[rows_B, accepted_B]
    if q_BGV.shape[1]:
        q_BV = q_BGV[rows_B, accepted_B.clamp(max=q_BGV.shape[1] - 1)]
        weighed_BV = p_BV if weight_B1 is None else weight_B1 * p_BV
        p_BV = torch.where((accepted_B < drafted_B).unsqueeze(-1), residual(weighed_BV, q_BV, p_BV), p_BV)
    next_B, sums_B = draw(p_BV, uniform_B)
    return VerificationResult(accepted_B, next_B, sums_B)


def residual(p_BV: torch.Tensor, q_BV: torch.Tensor, fallback_BV: torch.Tensor) -> torch.Tensor:
    """(p - q)+, unnormalised: the distribution of the correction. Where rounding leaves no mass, `fallback_BV`."""
    left_BV = (p_BV - q_BV).clamp(min=0.0)
    return torch.where(left_BV.sum(-1, keepdim=True) == 0, fallback_BV, left_BV)
