"""Sparse form of the target's distributions at temperature 1: K tokens each, three bytes per token. Does not read or write files.

Shapes: N positions, V shared tokens, K stored. An entry packs a token id and its log p into 24 bits: with a vocabulary of
152,000 the id takes 18 bits and log p has 6, with 2,048 log p has 13.
"""

from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.models.devices import computes_at_once, download, upload

Selection = Literal["sampled", "top_k"]
ENTRY_BYTES = 3
_ENTRY_BITS = 8 * ENTRY_BYTES
_LOWEST = -20.0  # lower log p are stored as this
_LEAST_REST = 1e-7  # below it, 1 - sum(p) in fp32 is only rounding error


class SparseDistribution(NamedTuple):
    """The first `certain` of the K tokens are the likeliest (top-k). The others were sampled from the rest without
    replacement, with probability proportional to p, so each represents an equal share of the rest's mass. If none were
    sampled, the rest is one bucket."""

    ids_NK: NDArray[np.int32]
    log_p_NK: NDArray[np.float32]
    certain_N: NDArray[np.uint8]
    rest_log_p_N: NDArray[np.float16]  # log of the mass outside the top tokens

    @classmethod
    def of(
        cls,
        ids_NK: NDArray[np.int32],
        log_p_NK: NDArray[np.float32],
        certain_N: NDArray[np.uint8],
        rest_log_p_N: NDArray[np.float64],
    ) -> "SparseDistribution":
        """Rounded once: torch would round to float32 on the way."""
        return cls(ids_NK, log_p_NK, certain_N, rest_log_p_N.astype(np.float16))


def sparsify(
    log_p_NV: torch.Tensor,
    count: int,
    method: Selection,
    uniform_N: NDArray[np.float64],
    listed_N: torch.Tensor | None = None,
) -> SparseDistribution:
    """Keep `count` < V tokens of each distribution. `uniform_N` in [0, 1) decides which are sampled.

    `listed_N`: the mass of the V tokens, if these are only the likeliest of a vocabulary; None if it is 1. The sampled tokens
    then represent the mass of the tokens that are not listed too.

    `top_k` keeps the likeliest. `sampled` keeps every token whose inclusion probability would reach 1, and samples the others
    systematically with probability proportional to p (fixed sample size). arXiv 2503.16870 samples with replacement; without
    it, the likeliest tokens are exact and no token is stored twice.
    """
    return SparseDistribution.of(*download(*sparse_tensors(log_p_NV, count, method, uniform_N, listed_N)))


def sparse_tensors(
    log_p_NV: torch.Tensor,
    count: int,
    method: Selection,
    uniform_N: NDArray[np.float64],
    listed_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `sparsify` keeps, on the device: for `SparseDistribution.of`. The host does not wait for it."""
    top = log_p_NV.topk(count, dim=-1)
    p_NK = top.values.double().exp()
    cumulative_NK = p_NK.cumsum(-1)
    after_NK = 1 - cumulative_NK  # mass outside the tokens up to this rank
    listed_after_NK = after_NK if listed_N is None else listed_N.double().unsqueeze(-1) - cumulative_NK
    if method == "top_k":
        certain_N = torch.full((len(p_NK),), count, device=p_NK.device)
    else:
        before_NK = listed_after_NK + p_NK
        left_K = torch.arange(count, 0, -1, device=p_NK.device)
        certain_N = (p_NK * left_K >= before_NK.clamp(min=_LEAST_REST)).cumprod(-1).sum(-1)
        # Do not sample from a rest whose mass is only rounding error.
        certain_N = torch.where(before_NK[:, -1] < _LEAST_REST, count, certain_N)
    rest_N = torch.where(
        certain_N == 0, 1.0, after_NK.gather(-1, (certain_N - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    )
    rest_N = rest_N.clamp(min=_LEAST_REST)
    ids_NK = top.indices
    # Where nothing is sampled drawing changes nothing; a GPU is not asked, because the host would wait for the answer.
    if method == "sampled" and not (computes_at_once(p_NK.device) and bool((certain_N == count).all())):
        ids_NK = _draw_from_rest(log_p_NV, ids_NK, certain_N, upload(torch.from_numpy(uniform_N), p_NK.device))
    return (
        ids_NK.int(),
        log_p_NV.gather(-1, ids_NK).float().clamp(min=_LOWEST),
        certain_N.to(torch.uint8),
        rest_N.log(),
    )


def _draw_from_rest(
    log_p_NV: torch.Tensor, ids_NK: torch.Tensor, certain_N: torch.Tensor, uniform_N: torch.Tensor
) -> torch.Tensor:
    """`ids_NK` with all but the top tokens replaced by a systematic sample: equal steps over the rest's cumulative mass, shifted
    by `uniform_N`. Every token of the rest has less mass than a step, so none is sampled twice."""
    place_K = torch.arange(ids_NK.shape[1], device=ids_NK.device)
    is_certain_NK = place_K < certain_N.unsqueeze(-1)
    is_certain_NV = torch.zeros_like(log_p_NV, dtype=torch.bool).scatter_(-1, ids_NK, is_certain_NK)
    rest_NV = log_p_NV.double().exp().masked_fill_(is_certain_NV, 0.0)
    mass_NV = rest_NV.cumsum(-1)
    draws_N = (ids_NK.shape[1] - certain_N).clamp(min=1)
    point_NK = (place_K - certain_N.unsqueeze(-1) + uniform_N.unsqueeze(-1)) / draws_N.unsqueeze(-1)
    found_NK = torch.searchsorted(mass_NV, (point_NK.clamp(min=0) * mass_NV[:, -1:]), right=True)
    return torch.where(is_certain_NK, ids_NK, found_NK.clamp(max=log_p_NV.shape[1] - 1))


def pack(kept: SparseDistribution, vocabulary: int) -> NDArray[np.uint8]:
    """Packed entries, (N, K, 3). Six bits for log p (152,000 tokens) are coarse: where the target's entropy is 2 or 3 nats, a
    perfect draft measures 1 to 2 points less `sum min(p, q)`, and losses based on it deviate as much. The weights of the
    forward KL are not rounded."""
    id_bits = _id_bits(vocabulary)
    levels = 2 ** (_ENTRY_BITS - id_bits) - 1
    below_NK = (kept.log_p_NK - _highest(kept.certain_N, kept.rest_log_p_N, kept.log_p_NK.shape[1])).clip(_LOWEST, 0.0)
    # Quantized on a square-root scale: fine steps for large p, coarse steps for small p.
    code_NK = np.rint(np.sqrt(below_NK / _LOWEST) * levels).astype(np.uint32)
    entry_NK = kept.ids_NK.astype(np.uint32) | code_NK << id_bits
    bytes_NK4: NDArray[np.uint8] = entry_NK.astype("<u4").view(np.uint8).reshape(*entry_NK.shape, 4)
    return bytes_NK4[..., :ENTRY_BYTES].copy()


def unpack(
    entries_NK3: NDArray[np.uint8], certain_N: NDArray[np.uint8], rest_log_p_N: NDArray[np.float16], vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids and log p, (N, K). The top tokens are renormalised after rounding, so that they and the rest sum to 1."""
    id_bits = _id_bits(vocabulary)
    wide = entries_NK3.astype(np.int32)
    entry_NK = wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16
    highest_NK = _highest(certain_N, rest_log_p_N, entry_NK.shape[1])
    log_p_NK = (highest_NK + _below_highest(_ENTRY_BITS - id_bits)[entry_NK >> id_bits]).astype(np.float32)
    is_certain_NK = np.arange(entry_NK.shape[1]) < certain_N[:, None]
    mass_N = (np.exp(log_p_NK) * is_certain_NK).sum(-1)
    mass_left_N = -np.expm1(rest_log_p_N.astype(np.float32))
    some_N = (certain_N > 0) & (mass_left_N > 0)
    shift_N = np.log(np.where(some_N, mass_left_N, 1.0) / np.where(some_N, mass_N, 1.0))
    np.add(log_p_NK, shift_N[:, None], out=log_p_NK, where=is_certain_NK)
    return (entry_NK & (2**id_bits - 1)).astype(np.int64), log_p_NK


@cache
def _below_highest(bits: int) -> NDArray[np.float64]:
    """What a code of so many bits adds to the largest possible log p, by code."""
    levels = 2**bits - 1
    below: NDArray[np.float64] = _LOWEST * (np.arange(levels + 1) / levels) ** 2
    return below


def step(log_p_N: NDArray[np.float64], vocabulary: int) -> NDArray[np.float64]:
    """How much `pack` and `unpack` may change the log p of a top token, (N,): the distance to the next lower code."""
    levels = 2 ** (_ENTRY_BITS - _id_bits(vocabulary)) - 1
    code_N = np.sqrt((log_p_N / _LOWEST).clip(0.0, 1.0)) * levels
    found_N: NDArray[np.float64] = -_LOWEST * ((code_N + 1) ** 2 - code_N**2) / levels**2
    return found_N


def _highest(certain_N: NDArray[np.uint8], rest_log_p_N: NDArray[np.float16], count: int) -> NDArray[np.float32]:
    """The largest possible log p of each entry, (N, K): 0 for a top token, the share of the rest for a sampled one. log p is
    quantized relative to it, so that the steps are finest near the usual values."""
    draws_N1 = np.maximum(count - certain_N.astype(np.float32), 1)[:, None]
    share_N1 = rest_log_p_N.astype(np.float32)[:, None] - np.log(draws_N1)
    highest_NK: NDArray[np.float32] = np.where(np.arange(count) < certain_N[:, None], np.float32(0), share_N1)
    return highest_NK


def _id_bits(vocabulary: int) -> int:
    return max(1, (vocabulary - 1).bit_length())
