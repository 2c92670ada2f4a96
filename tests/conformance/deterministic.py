"""The exact rounds of an engine where every a_t is 0 or 1, and near-ties that explain differences. numpy only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Convention

Floats = NDArray[np.float64]
TIE = 2e-5  # logits closer than this may be ordered otherwise by another order of fp32 sums (docs/examination.md)


@dataclass(frozen=True)
class NearTie:
    """A position where the engine's draft chose another token than ours because two logits are almost equal."""

    position: int
    gap: float


class Unexplained(Exception):
    """A round of the engine differs and no near-tie explains it."""


def deterministic_rounds(a_T: Floats, length: int, gamma: int, convention: Convention, limit: int) -> list[int]:
    """Tokens emitted by each round, where every a_t is 0 or 1. A clipped convention drafts no further than `limit` (the
    maximum number of new tokens), and tokens past the end are dropped."""
    emitted, position = [], convention.start
    while position < length:
        block = min(gamma, limit - position - 1) if convention.clipped else gamma
        accepted_T = a_T[position : position + block] > 0
        accepted = block if accepted_T.all() else int(np.argmin(accepted_T))
        emitted.append(min(accepted + 1, length - position) if convention.clipped else accepted + 1)
        position += accepted + 1
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
    """The near-ties at which a_t must be flipped for rounds to emit as many tokens as were `seen`; none where they do.

    Raises Unexplained if the first difference is not a near-tie. `a_T` must reach gamma tokens past the end.
    """
    flipped_T, ties = a_T.copy(), list[NearTie]()
    while (expected := deterministic_rounds(flipped_T, length, gamma, convention, limit)) != list(seen):
        pairs = list(zip(expected, seen, strict=False))
        first = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
        if first is None:
            raise Unexplained(f"{len(seen)} rounds seen and {len(expected)} expected, though none of them differ")
        position = convention.start + sum(seen[:first]) + min(pairs[first]) - 1
        gap = gap_at(position)
        if gap >= TIE or any(tie.position == position for tie in ties):
            raise Unexplained(f"at position {position} the engine took another round, and the gap is {gap:.2g}")
        ties.append(NearTie(position, gap))
        flipped_T[position] = 1 - flipped_T[position]
    return ties
