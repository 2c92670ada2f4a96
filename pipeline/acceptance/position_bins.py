"""Acceptance by position, in bins at powers of two: [0, 16), [16, 32), [32, 64) and so on. numpy only."""

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Floats, Lengths

BINS = 28  # the last bin begins at 2^30, more tokens than any context
EDGES = np.array([0, *(16 << power for power in range(BINS - 1)), np.iinfo(np.int64).max])


def tokens_before_edges(before_B: Lengths, lengths_B: Lengths) -> NDArray[np.int64]:
    """The number of tokens of each completion before each bin edge, (B, BINS + 1); its first token has position
    `before_B`."""
    found_BE: NDArray[np.int64] = np.clip(EDGES - before_B[:, None], 0, lengths_B[:, None])
    return found_BE


def accepted_by_bin(a_BT: Floats, places_BE: NDArray[np.int64]) -> Floats:
    """The sum of a_t in each bin, one row per completion; shape (B, BINS)."""
    sums_BT = np.zeros((len(a_BT), a_BT.shape[1] + 1))
    a_BT.cumsum(1, out=sums_BT[:, 1:])
    found_BE: Floats = np.diff(np.take_along_axis(sums_BT, places_BE, axis=1), axis=1)
    return found_BE


def bin_edges(number: int) -> tuple[int, int | None]:
    """A bin's first position, and the first position after it; None for the last bin."""
    last = number == BINS - 1
    return int(EDGES[number]), None if last else int(EDGES[number + 1])
