"""Figures from repeated turns: of one turn nobody knows how much of it is noise. Pure; imports nothing heavy."""

from collections.abc import Sequence
from math import comb
from statistics import median

from pipeline.acceptance.decoding_speed import Measured


def of_turns(values: Sequence[float], confidence: float = 0.95) -> Measured:
    """The median, and order statistics that bound it with at least this confidence, whatever the distribution: of n turns the
    k-th smallest and the k-th largest do with 1 - 2 P(fewer than k of n turns are below the median). ValueError for no turns."""
    found, count = sorted(values), len(values)
    if not found:
        raise ValueError("no turns")
    best, below = None, 0.0
    for number in range(count // 2):
        below += comb(count, number) / 2**count  # P(at most `number` turns are below the median)
        if 1 - 2 * below >= confidence:
            best = number
    middle = median(found)
    return Measured(middle, None, None) if best is None else Measured(middle, found[best], found[count - 1 - best])


def least_turns(confidence: float = 0.95) -> int:
    """The fewest turns whose smallest and largest bound the median with this confidence: 6 with 95%."""
    turns = 2
    while 1 - 2 / 2**turns < confidence:
        turns += 1
    return turns
