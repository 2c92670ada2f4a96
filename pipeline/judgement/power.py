"""What an examination could have proved: the power of a rule "lower bound > threshold". Pure.

The estimate of a gain over its standard error follows Student's t with `dof` degrees of freedom about the true gain, so the rule
passes with the probability of a noncentral t (Cohen 1988, 2.3; Johnson and Welch 1940):

    P(pass | true gain d) = P( T'(dof, (d - threshold) / error) > q ),   q = (value - low) / error

with the quantile q that the interval used, its correction for skewness included. Spread and mix of domains are taken as seen: the
standard error falls with the square root of the number of prompts, and the degrees of freedom rise with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.special import nctdtr, nctdtrinc, stdtrit

from pipeline.acceptance.intervals import Interval

LEVELS = (0.8, 0.95)
_LEAST_PROMPTS, _MOST_PROMPTS = 40, 10_000_000


@dataclass(frozen=True)
class Power:
    """The power of one rule. Gains are true gains, in the unit of the figure; keys are levels as text, such as "0.8"."""

    prompts: int
    passes: Mapping[str, float]  # the smallest true gain that passes with this probability
    refused: Mapping[str, float]  # the largest true gain (a loss, if negative) that is refused with this probability
    equal_passes: (
        float | None
    )  # the probability that a draft with equal acceptance passes; None for a threshold that is not < 0
    prompts_needed: Mapping[str, int | None]  # for an equal draft to pass; empty for a threshold that is not < 0


def power_of(found: Interval, threshold: float, confidence: float) -> Power | None:
    """The power of "lower bound of `found` > `threshold`". None where the examination has no standard error: too few prompts, or
    drafts that do not differ."""
    if not (math.isfinite(found.low) and math.isfinite(found.error) and found.error > 0):
        return None
    quantile = (found.value - found.low) / found.error
    passes = {str(level): threshold + found.error * _shift(found.dof, quantile, 1 - level) for level in LEVELS}
    refused = {str(level): threshold + found.error * _shift(found.dof, quantile, level) for level in LEVELS}
    if threshold >= 0:
        return Power(found.prompts, passes, refused, None, {})
    widening = quantile / float(stdtrit(found.dof, 0.5 + confidence / 2))
    return Power(
        found.prompts,
        passes,
        refused,
        _passes(found.dof, -threshold / found.error, quantile),
        {str(level): _prompts_needed(found, -threshold, level, confidence, widening) for level in LEVELS},
    )


def _passes(dof: float, shift: float, quantile: float) -> float:
    """P(T'(dof, shift) > quantile)."""
    return 1 - float(nctdtr(dof, shift, quantile))


def _shift(dof: float, quantile: float, below: float) -> float:
    """The noncentrality at which a noncentral t is below `quantile` with probability `below`."""
    return float(nctdtrinc(dof, below, quantile))


def _prompts_needed(found: Interval, margin: float, level: float, confidence: float, widening: float) -> int | None:
    """The fewest prompts with which an equal draft passes the margin with probability `level`, by bisection; at least 40, because
    the standard error of fewer is itself uncertain. `widening`: of the interval over Student's t. None beyond ten million."""

    def enough(prompts: int) -> bool:
        share = prompts / found.prompts
        dof = max(found.dof * share, 1.0)
        # The correction for skewness falls with the square root of the number of prompts, as skewness does.
        quantile = (1 + (widening - 1) / share**0.5) * float(stdtrit(dof, 0.5 + confidence / 2))
        return _passes(dof, margin * share**0.5 / found.error, quantile) >= level

    low, high = _LEAST_PROMPTS - 1, _LEAST_PROMPTS
    while not enough(high):
        low, high = high, high * 2
        if high > _MOST_PROMPTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
