"""log p of the distribution that tokens are sampled from, for a server that gives log p before cut-offs (top-k, top-p, min-p).

A token's log p is then log p before cut-offs less log M, where M is the mass of the tokens that can be sampled. Cut-offs keep the
likeliest tokens. If they end within the listed tokens, M is known; else it lies between two bounds.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError, UsageError
from pipeline.servers.answers import LikeliestTokens
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling

_UNKNOWN = 0.005  # nats, half the distance between the bounds of log M; rounding in bfloat16 is 0.005 to 0.01
_UNKNOWN_TO_COMPARE = 0.05  # where other weights are to be told, which differ by more
_ROUNDING = 1e-3  # relative; a token so close to a limit may be on either side of it


def cut_off(
    tokens_N: NDArray[np.int32], log_p_N: NDArray[np.float32], listed: LikeliestTokens, sampling: Sampling
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """log p (N,) of the tokens, and (N, K) of the listed tokens, -inf where one cannot be sampled. `log_p_N` and `listed`: before
    cut-offs, at the temperature. Not for top_k together with top_p, whose order differs between engines.

    UsageError where too few tokens are listed; UnderstudyError for a token that cannot be sampled.
    """
    p_NK = np.exp(listed.log_p_NK.astype(np.float64))  # 0 in the place of a token that the pair does not share
    kept_NK, goes_on_N, log_mass_N, unknown_N = _mass(p_NK, sampling)
    if unknown_N.max() > _UNKNOWN:
        raise UsageError(
            f"generate.server.logprobs is {p_NK.shape[1]}: more tokens can be sampled than are listed, so log p is known to "
            f"{unknown_N.max():.2g} nats only; raise it, or set a top_k up to it"
        )
    is_it_NK = listed.ids_NK == tokens_N[:, None]
    allowed_N = (is_it_NK & _kept(p_NK, sampling, _ROUNDING)).any(1) | (goes_on_N & ~is_it_NK.any(1))
    if not allowed_N.all():
        raise UnderstudyError(
            f"the server sampled token {tokens_N[~allowed_N][0]}, which `sampling` excludes; set it to what the server applies"
        )
    sampled_NK = np.where(kept_NK, listed.log_p_NK - log_mass_N[:, None], -np.inf)
    return np.minimum(log_p_N - log_mass_N, 0.0).astype(np.float32), np.minimum(sampled_NK, 0.0).astype(np.float32)


def sampled_log_p(
    tokens_N: NDArray[np.int32],
    log_p_N: NDArray[np.float32],
    listed: LikeliestTokens,
    sampling: Sampling,
    vocabulary: int,
) -> NDArray[np.float64]:
    """(N,): log p of the tokens as sampled from; nan where too few of `vocabulary` tokens are listed to know it. `log_p_N` and
    `listed`: at temperature 1. top_k with top_p: exact where the top_k is listed, nan elsewhere."""
    listed_NK = listed.log_p_NK.astype(np.float64)
    count = listed_NK.shape[1]
    is_it_NK = (listed.ids_NK == tokens_N[:, None]) & np.isfinite(listed_NK)
    if (
        0 < sampling.top_k <= count or count >= vocabulary
    ):  # the listed tokens are the whole vocabulary for this purpose
        sampled_NK = log_probabilities(torch.from_numpy(listed_NK), sampling).numpy()
        is_it_NK &= np.isfinite(sampled_NK)
        return np.where(is_it_NK.any(1), np.where(is_it_NK, sampled_NK, 0.0).sum(1), np.nan)
    if sampling.top_k and sampling.top_p < 1:
        return np.full(len(tokens_N), np.nan)
    log_sum_N, unknown_N = _log_sum(listed_NK, 1.0 / sampling.temperature, vocabulary)
    p_NK = np.exp(listed_NK / sampling.temperature - log_sum_N[:, None])
    kept_NK, goes_on_N, log_mass_N, unknown_mass_N = _mass(p_NK, sampling)
    known_N = (unknown_N + unknown_mass_N <= _UNKNOWN_TO_COMPARE) & (
        (is_it_NK & kept_NK).any(1) | (goes_on_N & ~is_it_NK.any(1))
    )
    return np.where(known_N, log_p_N / sampling.temperature - log_sum_N - log_mass_N, np.nan)


def _log_sum(
    listed_NK: NDArray[np.float64], power: float, vocabulary: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N,) each: log of the sum of p^power over the vocabulary, and half the distance between its bounds.

    The tokens that are not listed have the mass r that is left, each at most the smallest listed p. Their sum of powers lies
    between that of r spread evenly over them and that of r in as few of them as can hold it.
    """
    p_NK = np.exp(listed_NK)
    rest_N, least_N = np.maximum(1.0 - p_NK.sum(1), 1e-12), np.where(p_NK > 0, p_NK, 1.0).min(1)
    others = max(vocabulary - p_NK.shape[1], 1)
    sum_N = (p_NK**power).sum(1)
    bounds_2N = np.log(np.stack([sum_N + others * (rest_N / others) ** power, sum_N + rest_N * least_N ** (power - 1)]))
    return bounds_2N.mean(0), 0.5 * np.abs(bounds_2N[1] - bounds_2N[0])


def _mass(
    p_NK: NDArray[np.float64], sampling: Sampling
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Which listed tokens can be sampled (N, K), where more than those can (N,), and log M (N,) with half the distance between
    its bounds."""
    kept_NK = _kept(p_NK, sampling)
    mass_N, least_N = (kept_NK * p_NK).sum(1), np.where(p_NK > 0, p_NK, 1.0).min(1)
    all_kept_N = (kept_NK >= (p_NK > 0)).all(1)
    goes_on_N = all_kept_N & (mass_N < sampling.top_p) & (sampling.top_k == 0 or sampling.top_k > p_NK.shape[1])
    # Where the cut-offs end beyond the listed tokens: a top_p is reached with a token that is at most as likely as the last one.
    by_top_p_alone = sampling == Sampling(temperature=sampling.temperature, top_p=sampling.top_p)
    low_N = np.where(goes_on_N & by_top_p_alone, sampling.top_p, mass_N)
    high_N = np.where(goes_on_N, np.minimum(sampling.top_p + (sampling.top_p < 1) * least_N, 1.0), mass_N)
    unknown_N = 0.5 * np.log(high_N / low_N)
    return kept_NK, goes_on_N, np.log(low_N) + unknown_N, unknown_N


def _kept(p_NK: NDArray[np.float64], sampling: Sampling, wider: float = 0.0) -> NDArray[np.bool_]:
    """(N, K): which of the listed tokens can be sampled, with limits that are wider by so much."""
    before_NK, best_N1 = p_NK.cumsum(1) - p_NK, p_NK[:, :1]
    kept_NK = (before_NK < sampling.top_p * (1 + wider)) & (p_NK >= sampling.min_p * best_N1 * (1 - wider)) & (p_NK > 0)
    if 0 < sampling.top_k < p_NK.shape[1]:  # tokens as likely as the last one are kept too
        kept_NK &= p_NK >= p_NK[:, sampling.top_k - 1, None] * (1 - wider)
    return kept_NK
