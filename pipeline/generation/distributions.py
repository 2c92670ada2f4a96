"""What is kept of the target's distributions at temperature 1: K tokens of each, three bytes a token. Knows no file.

Shapes: N positions, V shared tokens, K kept. An entry is a token's id and its log p in 24 bits: of 152,000 tokens an id
takes 18 bits and leaves 6, of 2,048 it leaves 13.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Keep = Literal["drawn", "top"]
ENTRY_BYTES = 3
_ENTRY_BITS = 8 * ENTRY_BYTES
_LOWEST = -20.0  # log p below this is stored as this
_LEAST_REST = 1e-7  # below it, 1 - sum(p) of fp32 numbers says nothing


class Kept(NamedTuple):
    """The first `certain` of K tokens are the likeliest. The others were drawn from the rest, each with probability in
    proportion to p and none twice, so each stands for the same share of it; with none drawn, the rest is one bucket."""

    ids_NK: NDArray[np.int32]
    log_p_NK: NDArray[np.float32]
    certain_N: NDArray[np.uint8]
    rest_log_p_N: NDArray[np.float16]  # log of the mass outside the certain ones


def keep(log_p_NV: torch.Tensor, count: int, how: Keep, uniform_N: NDArray[np.float64]) -> Kept:
    """Keep `count` < V tokens of each distribution. `uniform_N` in [0, 1) decides which are drawn.

    `top` keeps the likeliest. `drawn` keeps for certain what an estimate without bias must not miss, and spends what is left on
    draws: sampling of a fixed size with probability proportional to size, systematic. With replacement it would be
    arXiv 2503.16870; without, the likeliest tokens are exact and no entry is spent twice.
    """
    top = log_p_NV.topk(count, dim=-1)
    p_NK = top.values.double().exp()
    after_NK = 1 - p_NK.cumsum(-1)  # mass left when the token at this rank is certain as well
    if how == "top":
        certain_N = torch.full((len(p_NK),), count, device=p_NK.device)
    else:
        before_NK = after_NK + p_NK
        left_K = torch.arange(count, 0, -1, device=p_NK.device)
        certain_N = (p_NK * left_K >= before_NK.clamp(min=_LEAST_REST)).cumprod(-1).sum(-1)
        # A rest that rounding has eaten is not drawn from.
        certain_N = torch.where(before_NK[:, -1] < _LEAST_REST, count, certain_N)
    rest_N = torch.where(
        certain_N == 0, 1.0, after_NK.gather(-1, (certain_N - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    )
    rest_N = rest_N.clamp(min=_LEAST_REST)
    ids_NK = top.indices
    if how == "drawn" and bool((certain_N < count).any()):
        ids_NK = _drawn(log_p_NV, ids_NK, certain_N, rest_N, torch.from_numpy(uniform_N).to(p_NK.device))
    return Kept(
        ids_NK.cpu().numpy().astype(np.int32),
        log_p_NV.gather(-1, ids_NK).float().clamp(min=_LOWEST).cpu().numpy(),
        certain_N.cpu().numpy().astype(np.uint8),
        rest_N.log().cpu().numpy().astype(np.float16),
    )


def _drawn(
    log_p_NV: torch.Tensor, ids_NK: torch.Tensor, certain_N: torch.Tensor, rest_N: torch.Tensor, uniform_N: torch.Tensor
) -> torch.Tensor:
    """`ids_NK` with what is not certain replaced by draws: a comb of equal steps over the rest's mass, shifted by `uniform_N`.
    No token of the rest is as heavy as a step, so none is met twice."""
    place_K = torch.arange(ids_NK.shape[1], device=ids_NK.device)
    is_certain_NK = place_K < certain_N.unsqueeze(-1)
    is_certain_NV = torch.zeros_like(log_p_NV, dtype=torch.bool).scatter_(-1, ids_NK, is_certain_NK)
    rest_NV = log_p_NV.double().exp().masked_fill_(is_certain_NV, 0.0)
    mass_NV = rest_NV.cumsum(-1)
    draws_N = (ids_NK.shape[1] - certain_N).clamp(min=1)
    tooth_NK = (place_K - certain_N.unsqueeze(-1) + uniform_N.unsqueeze(-1)) / draws_N.unsqueeze(-1)
    found_NK = torch.searchsorted(mass_NV, (tooth_NK.clamp(min=0) * mass_NV[:, -1:]), right=True)
    return torch.where(is_certain_NK, ids_NK, found_NK.clamp(max=log_p_NV.shape[1] - 1))


def pack(kept: Kept, vocabulary: int) -> NDArray[np.uint8]:
    """Entries, (N, K, 3). Six bits at 152,000 tokens are coarse: they cost a perfect draft 1 to 2 points of `sum min(p, q)`
    where the target has 2 or 3 nats of entropy, and losses made of it as much. The forward KL's weights are not rounded."""
    id_bits = _id_bits(vocabulary)
    levels = 2 ** (_ENTRY_BITS - id_bits) - 1
    below_NK = (kept.log_p_NK - _highest(kept.certain_N, kept.rest_log_p_N, kept.log_p_NK.shape[1])).clip(_LOWEST, 0.0)
    # By the square root: fine steps where p is large, coarse ones where it hardly counts.
    code_NK = np.rint(np.sqrt(below_NK / _LOWEST) * levels).astype(np.uint32)
    entry_NK = kept.ids_NK.astype(np.uint32) | code_NK << id_bits
    bytes_NK4: NDArray[np.uint8] = entry_NK.astype("<u4").view(np.uint8).reshape(*entry_NK.shape, 4)
    return bytes_NK4[..., :ENTRY_BYTES].copy()


def unpack(
    entries_NK3: NDArray[np.uint8], certain_N: NDArray[np.uint8], rest_log_p_N: NDArray[np.float16], vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids and log p, (N, K). What the certain ones lost to rounding is given back: with the rest they make 1."""
    id_bits = _id_bits(vocabulary)
    wide = entries_NK3.astype(np.int64)
    entry_NK = wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16
    levels = 2 ** (_ENTRY_BITS - id_bits) - 1
    highest_NK = _highest(certain_N, rest_log_p_N, entry_NK.shape[1])
    log_p_NK = (highest_NK + _LOWEST * ((entry_NK >> id_bits) / levels) ** 2).astype(np.float32)
    is_certain_NK = np.arange(entry_NK.shape[1]) < certain_N[:, None]
    mass_N = (np.exp(log_p_NK) * is_certain_NK).sum(-1)
    wanted_N = -np.expm1(rest_log_p_N.astype(np.float32))
    some_N = (certain_N > 0) & (wanted_N > 0)
    shift_N = np.log(np.where(some_N, wanted_N, 1.0) / np.where(some_N, mass_N, 1.0))
    return entry_NK & (2**id_bits - 1), np.where(is_certain_NK, log_p_NK + shift_N[:, None], log_p_NK).astype(
        np.float32
    )


def _highest(certain_N: NDArray[np.uint8], rest_log_p_N: NDArray[np.float16], count: int) -> NDArray[np.float32]:
    """The largest log p that an entry can have, (N, K): of a drawn one, its share of the rest. Codes are counted from there, so
    that they are finest where p mostly lies."""
    draws_N1 = np.maximum(count - certain_N.astype(np.float32), 1)[:, None]
    share_N1 = rest_log_p_N.astype(np.float32)[:, None] - np.log(draws_N1)
    highest_NK: NDArray[np.float32] = np.where(np.arange(count) < certain_N[:, None], np.float32(0), share_N1)
    return highest_NK


def _id_bits(vocabulary: int) -> int:
    return max(1, (vocabulary - 1).bit_length())
