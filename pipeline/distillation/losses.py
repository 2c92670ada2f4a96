"""Losses of distillation, as pure functions of what the draft says and what the target said. Knows no model and no store.

Every loss compares columns of p and q. From full distributions a column is a token. From stored ones (`Sparse`) it is a
token kept for certain, a token drawn from the rest, which stands for many, or the whole rest in one bucket.
Shapes: N positions that the target spoke at, V shared tokens, K stored tokens, M columns. Losses are (N,), in nats.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from pipeline.distillation.sparse_log_probs import select

_LEAST = -1e4  # for log p of what cannot be: exp gives 0, and 0 * -inf is not met
_LEAST_REST = 1e-7  # of a bucket's mass: below, a difference of fp32 numbers says nothing
_NEGLIGIBLE = math.log(1e-6)  # log mass of a rest whose tokens are not learnt one by one
_SHARPNESS = 3.0  # of `lk_hybrid`, as its authors have it


class Sparse(NamedTuple):
    """What is stored of a target's distributions at temperature 1.

    The first `certain` of K tokens are there for certain. The others were drawn from the rest without replacement, with
    probability in proportion to p, so that each stands for the same share of the rest: sums over the vocabulary are
    estimated without bias. Where all are certain (top k), the rest is one bucket.
    """

    ids_NK: torch.Tensor
    log_p_NK: torch.Tensor
    certain_N: torch.Tensor
    rest_log_p_N: torch.Tensor  # log of the mass outside the certain ones
    tokens_N: torch.Tensor  # that the target drew


class Columns(NamedTuple):
    log_p_NM: torch.Tensor
    log_q_NM: torch.Tensor
    log_count_NM: torch.Tensor | float  # log of the number of tokens that a column stands for; -inf for none
    log_q_within_N: torch.Tensor | float  # log q(the target's token | the rest) where it lies in a bucket, else 0


Loss = Callable[[Columns], torch.Tensor]


def full_columns(log_q_NV: torch.Tensor, log_p_NV: torch.Tensor) -> Columns:
    """A column a token, from the target's whole distributions."""
    return Columns(log_p_NV.clamp(min=_LEAST), log_q_NV.clamp(min=_LEAST), 0.0, 0.0)


def sparse_columns(logits_NV: torch.Tensor, stored: Sparse, merged: bool = False) -> Columns:
    """K + 1 columns from the draft's logits, the last for the bucket.

    Merging tokens into a bucket can only hide disagreement: every divergence here is at most that of the full
    distributions, and the acceptance at least. Tokens drawn from the rest do not: sums over them have the full sum as
    their mean (Horvitz-Thompson), so `forward_kl`, `reverse_kl` and `total_variation` are unbiased, and what is not a
    sum, such as `-log acceptance`, nearly so. But a draw stands for 1 / p tokens: where the draft says a lot of what the
    target hardly says, a term weighted by q is seldom met and then huge. For such losses (`MERGED`) every kept token counts
    once and all others are the bucket.
    """
    kept = stored.ids_NK.shape[1]
    draft = select(logits_NV, stored.ids_NK, stored.tokens_N)
    place_K = torch.arange(kept, device=logits_NV.device)
    drawn_NK = place_K >= stored.certain_N.unsqueeze(-1)
    drawn_N = (kept - stored.certain_N).clamp(min=1).to(stored.log_p_NK.dtype)
    share_N = stored.rest_log_p_N - drawn_N.log()
    log_count_NK = torch.where(drawn_NK & (not merged), share_N.unsqueeze(-1) - stored.log_p_NK, 0.0)
    bucket_N = (stored.certain_N == kept) | merged
    rest_log_p_N = stored.rest_log_p_N
    if merged:  # the drawn ones are no part of the bucket
        drawn_p_N = torch.where(drawn_NK, stored.log_p_NK.exp(), 0.0).sum(-1)
        rest_log_p_N = (rest_log_p_N.exp() - drawn_p_N).clamp(min=_LEAST_REST).log()
    rest_log_q_N = draft.rest_log_q_N.clamp(min=_LEAST)
    within_N = draft.token_log_q_N - rest_log_q_N
    # Where next to nothing is left the target hardly ever draws from it. On a text that it did not write (on-policy) the token
    # may still lie there, and is no draw of the target's.
    in_bucket_N = bucket_N & (rest_log_p_N > _NEGLIGIBLE) & (stored.ids_NK != stored.tokens_N.unsqueeze(-1)).all(-1)
    return Columns(
        torch.cat([stored.log_p_NK, rest_log_p_N.unsqueeze(-1)], dim=-1).clamp(min=_LEAST),
        torch.cat([draft.log_q_NK.clamp(min=_LEAST), rest_log_q_N.unsqueeze(-1)], dim=-1),
        torch.cat([log_count_NK, torch.where(bucket_N, 0.0, -torch.inf).unsqueeze(-1)], dim=-1),
        torch.where(in_bucket_N, within_N, 0.0),
    )


def forward_kl(columns: Columns) -> torch.Tensor:
    """KL(p || q) = sum p (log p - log q): covers all the target says. Up to a constant where there is a bucket.

    The KL splits exactly at the bucket: KL over the columns + p_rest * KL within the rest. The second part is not stored,
    but where the target drew x from the rest, -log q(x | rest) estimates it without bias, up to the rest's own entropy.
    Without it nothing tells the draft how to spend the rest, and a target with a heavy one is distilled to a worse draft.
    """
    return _sum(columns, columns.log_p_NM.exp() * (columns.log_p_NM - columns.log_q_NM)) - columns.log_q_within_N


def reverse_kl(columns: Columns) -> torch.Tensor:
    """KL(q || p) = sum q (log q - log p): keeps to what the target is likely to say."""
    return _sum(columns, columns.log_q_NM.exp() * (columns.log_q_NM - columns.log_p_NM))


def jensen_shannon(columns: Columns, beta: float = 0.5) -> torch.Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q (GKD, arXiv 2306.13649). `beta` within (0, 1)."""
    log_p_NM, log_q_NM = columns.log_p_NM, columns.log_q_NM
    parts = torch.stack([log_p_NM + math.log(beta), log_q_NM + math.log(1 - beta)])
    log_m_NM = parts.logsumexp(0)
    from_p_NM, from_q_NM = log_p_NM.exp() * (log_p_NM - log_m_NM), log_q_NM.exp() * (log_q_NM - log_m_NM)
    return _sum(columns, beta * from_p_NM + (1 - beta) * from_q_NM)


def log_acceptance(columns: Columns) -> torch.Tensor:
    """log of sum min(p, q), the chance that rejection sampling accepts a draft token (Leviathan et al. 2023, Cor. 3.6)."""
    return (torch.minimum(columns.log_p_NM, columns.log_q_NM) + columns.log_count_NM).logsumexp(-1)


def total_variation(columns: Columns) -> torch.Tensor:
    """1 - sum min(p, q): the chance of a rejection itself. Its gradient fades where p and q hardly meet."""
    return 1 - log_acceptance(columns).exp()


def negative_log_acceptance(columns: Columns) -> torch.Tensor:
    """-log sum min(p, q): as `total_variation`, divided by the acceptance, so that it moves where they hardly meet."""
    return -log_acceptance(columns)


def lk_hybrid(columns: Columns) -> torch.Tensor:
    """w KL(p || q) + (1 - w) TV, w = exp(-3 acceptance) of the position, held constant (LK losses, arXiv 2602.23881): from
    far away the KL pulls, near the target the acceptance itself."""
    variation_N = total_variation(columns)
    weight_N = torch.exp(-_SHARPNESS * (1 - variation_N.detach()))
    return weight_N * forward_kl(columns) + (1 - weight_N) * variation_N


def cross_entropy(logits_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """-log q of the tokens that the target drew: plain SFT on the target's text."""
    return functional.cross_entropy(logits_NV.float(), tokens_N, reduction="none")


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
