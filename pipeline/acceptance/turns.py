"""Figures from repeated turns: of one turn nobody knows how much of it is noise. Pure; imports nothing heavy."""

from collections.abc import Sequence
from math import comb
from statistics import median

from pipeline.acceptance.decoding_speed import DraftSpeed, Measured

_MOST_SPREAD = 1.5  # upper bound / lower bound of a speedup that is still worth reading


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


def speed_of_turns(ours: Sequence[float], plain: Sequence[float], gamma: int, confidence: float = 0.95) -> DraftSpeed:
    """Tokens per second with up to `gamma` draft tokens and without, in the same turns: the speedup is that within each turn. Not
    measurable where its bounds are too far apart to say anything, or where there are too few turns for bounds."""
    rate = of_turns(ours, confidence)
    speedup = of_turns([one / other for one, other in zip(ours, plain, strict=True)], confidence)
    if speedup.low is None or speedup.high is None:
        reason = f"{len(ours)} turns are too few for a {100 * confidence:g}% interval; take {least_turns(confidence)}"
        return DraftSpeed(gamma=gamma, tokens_per_second=rate, speedup=None, not_measurable=reason)
    if speedup.high > _MOST_SPREAD * speedup.low:
        reason = f"it was {speedup.low:.2f} in one turn and {speedup.high:.2f} in another; is something else running?"
        return DraftSpeed(gamma=gamma, tokens_per_second=rate, speedup=None, not_measurable=reason)
    return DraftSpeed(gamma=gamma, tokens_per_second=rate, speedup=speedup)
