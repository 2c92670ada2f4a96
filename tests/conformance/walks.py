"""The very rounds an engine must take where nothing is left to chance, and near-ties where it took others. numpy only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Convention

Floats = NDArray[np.float64]
TIE = 2e-5  # logits closer than this may be ordered otherwise by another order of fp32 sums (docs/examination.md)


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
