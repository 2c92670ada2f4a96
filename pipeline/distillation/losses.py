"""Losses of distillation, as pure functions of logits and stored targets.

Shapes: N positions (already masked: only what the target said), k stored tokens of the target, V shared tokens.
"""

import torch
from torch.nn import functional


def forward_kl(
    logits_NV: torch.Tensor,
    top_ids_NK: torch.Tensor,
    top_log_p_NK: torch.Tensor,
    tail_log_p_N: torch.Tensor,
    tokens_N: torch.Tensor,
) -> torch.Tensor:
    """Mean KL(p || q) from the target's top k, one bucket for its tail, and the token it sampled; up to a constant.

    The KL splits exactly at the tail: KL over (top k, tail's mass) + p_tail * KL of the two tails. The first part is
    sum_k p_k (log p_k - log q_k) + p_tail (log p_tail - log q_tail). The second is not stored, but where the sampled token
    x lies in the tail, -log q(x | tail) estimates it without bias, up to the tail's own entropy (at temperature 1). Without
    it nothing tells the draft how to spend the tail, and a target with a heavy one is distilled to a worse draft.
    """
    log_q_NV = logits_NV.log_softmax(-1)
    log_q_NK = log_q_NV.gather(-1, top_ids_NK)
    # The tail's log mass by logsumexp over what is left: 1 - sum(q) cancels to 0 or below in fp32.
    tail_log_q_N = log_q_NV.scatter(-1, top_ids_NK, -torch.inf).logsumexp(-1)
    p_NK, tail_p_N = top_log_p_NK.exp(), tail_log_p_N.exp()
    kl_N = (p_NK * (top_log_p_NK - log_q_NK)).sum(-1) + tail_p_N * (tail_log_p_N - tail_log_q_N)
    in_tail_N = (top_ids_NK != tokens_N.unsqueeze(-1)).all(-1)
    within_N = tail_log_q_N - log_q_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)
    return (kl_N + torch.where(in_tail_N, within_N, 0.0)).mean()


def cross_entropy(logits_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """Mean -log q of the tokens the target sampled: plain SFT on the target's text."""
    return functional.cross_entropy(logits_NV, tokens_N)
