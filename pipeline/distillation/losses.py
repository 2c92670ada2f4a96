"""Distillation losses as pure functions of draft logits and target distributions. Does not depend on models or the store.

Every loss compares columns of p and q. For full distributions a column is a token. For stored ones (`SparseTargets`) a column
is a top token, a token sampled from the rest (which represents several), or the whole rest in one bucket.
Shapes: N loss positions, V shared tokens, K stored tokens, M columns. Losses are (N,), in nats.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from pipeline.distillation.sparse_log_probs import GatherLogProbs, gather_log_probs

_LEAST = -1e4  # log p of impossible tokens: exp gives 0, and 0 * -inf is avoided
_LEAST_REST = 1e-7  # bucket mass below which a difference of fp32 numbers is only rounding error
_NEGLIGIBLE = math.log(1e-6)  # log mass of a rest whose tokens get no individual term
_SHARPNESS = 3.0  # of `lk_hybrid`, as in the paper


class SparseTargets(NamedTuple):
    """The stored distributions of the target at temperature 1.

    The first `certain` of K tokens are the likeliest. The others were sampled from the rest without replacement, with
    probability proportional to p, so each represents an equal share of the rest and sums over the vocabulary are estimated
    without bias. If none were sampled (top k), the rest is one bucket.
    """

    ids_NK: torch.Tensor
    log_p_NK: torch.Tensor
    certain_N: torch.Tensor
    rest_log_p_N: torch.Tensor  # log of the mass outside the top tokens
    tokens_N: torch.Tensor  # the completion's tokens


class Columns(NamedTuple):
    log_p_NM: torch.Tensor
    log_q_NM: torch.Tensor
    log_count_NM: torch.Tensor | float  # log of the number of tokens that a column represents; -inf for none
    log_q_within_N: torch.Tensor | float  # log q(completion token | the rest) if the token is in the bucket, else 0


Loss = Callable[[Columns], torch.Tensor]


def full_columns(log_q_NV: torch.Tensor, log_p_NV: torch.Tensor) -> Columns:
    """One column per token, from the target's full distributions."""
    return Columns(log_p_NV.clamp(min=_LEAST), log_q_NV.clamp(min=_LEAST), 0.0, 0.0)


def sparse_columns(
    logits_NV: torch.Tensor, stored: SparseTargets, merged: bool = False, gather: GatherLogProbs = gather_log_probs
) -> Columns:
    """K + 1 columns from the draft's logits; the last one is the bucket.

    With a bucket, every divergence is a lower bound of that of the full distributions, and the acceptance an upper bound.
    With tokens sampled from the rest, sums are unbiased (Horvitz-Thompson): `forward_kl`, `reverse_kl` and `total_variation`
    are unbiased, and functions of sums such as `-log acceptance` nearly so. But a sampled token represents 1 / p tokens: where
    q is large and p small, a term weighted by q is rarely sampled and then huge. For such losses (`MERGED`) every stored token
    counts once and all others are in the bucket.

    A token that the draft cannot give (its logit is -inf: a head with a part of the vocabulary) has no column. Its mass of p is
    then nowhere, which leaves the gradient of forward KL and total variation what it is without the token.
    """
    kept = stored.ids_NK.shape[1]
    draft = gather(logits_NV, stored.ids_NK, stored.tokens_N)
    place_K = torch.arange(kept, device=logits_NV.device)
    drawn_NK = place_K >= stored.certain_N.unsqueeze(-1)
    drawn_N = (kept - stored.certain_N).clamp(min=1).to(stored.log_p_NK.dtype)
    share_N = stored.rest_log_p_N - drawn_N.log()
    log_count_NK = torch.where(drawn_NK & (not merged), share_N.unsqueeze(-1) - stored.log_p_NK, 0.0)
    log_count_NK = torch.where(draft.log_q_NK.isneginf(), _LEAST, log_count_NK)
    bucket_N = (stored.certain_N == kept) | merged
    rest_log_p_N = stored.rest_log_p_N
    if merged:  # the sampled tokens are not part of the bucket
        drawn_p_N = torch.where(drawn_NK, stored.log_p_NK.exp(), 0.0).sum(-1)
        rest_log_p_N = (rest_log_p_N.exp() - drawn_p_N).clamp(min=_LEAST_REST).log()
    rest_log_q_N = draft.rest_log_q_N.clamp(min=_LEAST)
    within_N = draft.token_log_q_N - rest_log_q_N
    # If the rest has almost no mass, the target almost never samples from it. In on-policy data the draft's token may still be in
    # the rest, but it is not a sample from the target.
    in_bucket_N = bucket_N & (rest_log_p_N > _NEGLIGIBLE) & (stored.ids_NK != stored.tokens_N.unsqueeze(-1)).all(-1)
    in_bucket_N &= ~draft.token_log_q_N.isneginf()
    return Columns(
        torch.cat([stored.log_p_NK, rest_log_p_N.unsqueeze(-1)], dim=-1).clamp(min=_LEAST),
        torch.cat([draft.log_q_NK.clamp(min=_LEAST), rest_log_q_N.unsqueeze(-1)], dim=-1),
        torch.cat([log_count_NK, torch.where(bucket_N, 0.0, -torch.inf).unsqueeze(-1)], dim=-1),
        torch.where(in_bucket_N, within_N, 0.0),
    )


def forward_kl(columns: Columns) -> torch.Tensor:
    """KL(p || q) = sum p (log p - log q): mode-covering. With a bucket, up to a constant.

    The KL splits exactly at the bucket: KL over the columns + p_rest * KL within the rest. The second part is not stored, but
    if the target sampled x from the rest, -log q(x | rest) estimates it without bias, up to the entropy of the rest. Without
    this term the draft gets no signal within the rest, and drafts of targets with a heavy tail get worse.
    """
    return _sum(columns, columns.log_p_NM.exp() * (columns.log_p_NM - columns.log_q_NM)) - columns.log_q_within_N


def reverse_kl(columns: Columns) -> torch.Tensor:
    """KL(q || p) = sum q (log q - log p): mode-seeking."""
    return _sum(columns, columns.log_q_NM.exp() * (columns.log_q_NM - columns.log_p_NM))


def jensen_shannon(columns: Columns, beta: float = 0.5) -> torch.Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q (GKD, arXiv 2306.13649). `beta` within (0, 1)."""
    log_p_NM, log_q_NM = columns.log_p_NM, columns.log_q_NM
    parts = torch.stack([log_p_NM + math.log(beta), log_q_NM + math.log(1 - beta)])
    log_m_NM = parts.logsumexp(0)
    from_p_NM, from_q_NM = log_p_NM.exp() * (log_p_NM - log_m_NM), log_q_NM.exp() * (log_q_NM - log_m_NM)
    return _sum(columns, beta * from_p_NM + (1 - beta) * from_q_NM)


def log_acceptance(columns: Columns) -> torch.Tensor:
    """log of sum min(p, q), the probability that a draft token is accepted (Leviathan et al. 2023, Cor. 3.6)."""
    return (torch.minimum(columns.log_p_NM, columns.log_q_NM) + columns.log_count_NM).logsumexp(-1)


def total_variation(columns: Columns) -> torch.Tensor:
    """1 - sum min(p, q): the rejection probability. Its gradient vanishes where p and q hardly overlap."""
    return 1 - log_acceptance(columns).exp()


def negative_log_acceptance(columns: Columns) -> torch.Tensor:
    """-log sum min(p, q): the gradient of `total_variation` divided by the acceptance, so it does not vanish."""
    found_N = log_acceptance(columns)
    return torch.where(found_N < _LEAST, 0.0, -found_N)  # nothing that the draft can give was stored


def lk_hybrid(columns: Columns) -> torch.Tensor:
    """w KL(p || q) + (1 - w) TV, w = exp(-3 acceptance) of the position, without gradient (LK losses, arXiv 2602.23881): the KL
    dominates at low acceptance, the TV at high acceptance."""
    variation_N = total_variation(columns)
    weight_N = torch.exp(-_SHARPNESS * (1 - variation_N.detach()))
    return weight_N * forward_kl(columns) + (1 - weight_N) * variation_N


def cross_entropy(logits_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """-log q of the completion tokens: plain SFT on the target's completions. 0 for a token that the draft cannot give."""
    loss_N = functional.cross_entropy(logits_NV.float(), tokens_N, reduction="none")
    return loss_N.masked_fill(loss_N.isposinf(), 0.0)


def _sum(columns: Columns, terms_NM: torch.Tensor) -> torch.Tensor:
    if isinstance(columns.log_count_NM, float):
        return terms_NM.sum(-1)
    return (terms_NM * columns.log_count_NM.exp()).sum(-1)


LOSSES: dict[str, Loss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
    "negative_log_acceptance": negative_log_acceptance,
    "lk_hybrid": lk_hybrid,
}
MERGED = frozenset({"reverse_kl", "jensen_shannon"})
