"""Mean and variance of an engine's counters over given texts, and the very rounds it must take where nothing is left to
chance. numpy only.

Stands in for second moments in `pipeline.acceptance`: when those are there, `count_moments` should give way to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Convention

Floats = NDArray[np.float64]
TIE = 2e-5  # logits closer than this may be ordered otherwise by another order of fp32 sums (DESIGN section 2)


def count_moments(
    a_BT: Floats, lengths_B: NDArray[np.int64], gamma: int, convention: Convention
) -> tuple[Floats, Floats]:
    """Mean and variance, both (B, 2 + gamma), of each completion's drafts, accepted tokens, and accepted tokens by place.

    Backwards from the end: a round at t has outcomes k = 0..gamma of weight w_k and pays r_k, so that
    V[t] = sum_k w_k (r_k + V[t+k+1]) and the second moment S[t] = sum_k w_k (r_k^2 + 2 r_k V[t+k+1] + S[t+k+1]).
    For unclipped conventions only: a_BT reaches gamma - 1 tokens past the longest end.
    """
    assert not convention.clipped
    batch, longest = len(a_BT), int(lengths_B.max())
    outcome_K, place_G = np.arange(gamma + 1), np.arange(gamma)
    pay_KR = np.column_stack([np.ones(gamma + 1), outcome_K, outcome_K[:, None] > place_G])
    mean_BTR = np.zeros((batch, longest + gamma + 1, pay_KR.shape[1]))
    second_BTR = np.zeros_like(mean_BTR)
    for t in range(longest - 1, convention.start - 1, -1):
        stand_BG = a_BT[:, t : t + gamma].cumprod(1)
        reached_BK = np.concatenate([np.ones((batch, 1)), stand_BG], axis=1)
        weight_BK = reached_BK - np.concatenate([stand_BG, np.zeros((batch, 1))], axis=1)
        after_BKR = mean_BTR[:, t + 1 : t + gamma + 2]
        value_BR = (weight_BK[..., None] * (pay_KR + after_BKR)).sum(1)
        square_BKR = pay_KR**2 + 2 * pay_KR * after_BKR + second_BTR[:, t + 1 : t + gamma + 2]
        inside_B1 = (t < lengths_B)[:, None]
        mean_BTR[:, t] = np.where(inside_B1, value_BR, 0.0)
        second_BTR[:, t] = np.where(inside_B1, (weight_BK[..., None] * square_BKR).sum(1), 0.0)
    mean_BR = mean_BTR[:, convention.start]
    return mean_BR, np.maximum(second_BTR[:, convention.start] - mean_BR**2, 0.0)


@dataclass(frozen=True)
class NearTie:
    """Where the engine's draft chose otherwise than ours because two logits are as good as equal."""

    position: int
    gap: float


class Unexplained(Exception):
    """The engine took a round that no near-tie explains."""


def walk(a_T: Floats, length: int, gamma: int, convention: Convention, limit: int) -> list[int]:
    """Tokens that each round emits, where every a_t is 0 or 1. A clipped convention drafts no further than `limit`, the
    most tokens that were asked for, and what a round says past the end is cut."""
    emitted, position = [], convention.start
    while position < length:
        block = min(gamma, limit - position - 1) if convention.clipped else gamma
        stands = a_T[position : position + block] > 0
        stood = block if stands.all() else int(np.argmin(stands))
        emitted.append(min(stood + 1, length - position) if convention.clipped else stood + 1)
        position += stood + 1
    return emitted


def explain(
    a_T: Floats,
    length: int,
    gamma: int,
    convention: Convention,
    limit: int,
    seen: Sequence[int],
    gap_at: Callable[[int], float],
) -> list[NearTie]:
    """The near-ties at which a_t must be turned over for rounds to emit as many tokens as were `seen`; none where they do.

    Raises Unexplained where the first difference is no near-tie. `a_T` must reach gamma tokens past the end.
    """
    turned_T, ties = a_T.copy(), []
    while (expected := walk(turned_T, length, gamma, convention, limit)) != list(seen):
        pairs = list(zip(expected, seen, strict=False))
        first = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
        if first is None:
            raise Unexplained(f"{len(seen)} rounds seen and {len(expected)} expected, though none of them differ")
        position = convention.start + sum(seen[:first]) + min(pairs[first]) - 1
        gap = gap_at(position)
        if gap >= TIE or any(tie.position == position for tie in ties):
            raise Unexplained(f"at position {position} the engine took another turn, and the gap is {gap:.2g}")
        ties.append(NearTie(position, gap))
        turned_T[position] = 1 - turned_T[position]
    return ties
