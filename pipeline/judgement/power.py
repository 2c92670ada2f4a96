"""What an examination could have proved: the power of a rule "lower bound of the gain > threshold". Pure.

The rule passes if (estimate - threshold) / error > c, where c standard errors lie between the estimate and its lower bound. With
true gain d and T' of the noncentral t distribution (Johnson and Welch 1940),

    P(pass | d) = P(T'(dof, (d - threshold) / error) > c)

c is that of the interval, its correction for skewness included. The noncentral t takes the estimate and its standard error as
independent, but for skewed data their correlation is the skewness A of the estimate. With normal z of the probability above,

    P(pass | d) = Phi(z sqrt(v / (v - c A))),    v = 1 + c^2 / (2 dof)

because v - c A is the variance of (estimate - c error), in units of error^2, to first order in A.

The spread of the units (conversations) and the mix of domains are taken as seen. With N times as many the standard error falls by
sqrt(N), and so does the skewness of the estimate; the degrees of freedom rise N times.
"""

import math

from scipy.special import chdtri, nctdtr, nctdtrinc, ndtr, ndtri

from pipeline.acceptance.intervals import Interval, standard_errors
from pipeline.judgement.rule_result import Power

LEVELS = (0.8, 0.95)
_LEAST_PROMPTS, _MOST_PROMPTS = 40, 10_000_000
_LEAST_VARIANCE = 0.25  # share of v that v - c A is at least, because it is of first order in A only
_SPREAD_CONFIDENCE = 0.8  # that the spread of the prompts is not larger than assumed for `prompts_needed`


def power_of(interval: Interval, threshold: float, confidence: float) -> Power | None:
    """The power of "lower bound of `found` > `threshold`". None where the examination has no standard error: too few prompts, or
    drafts that do not differ."""
    if not has_power(interval):
        return None
    gains = {
        level: _gain_that_passes(interval, threshold, level) for level in (*LEVELS, *(1 - level for level in LEVELS))
    }
    passes = {str(level): gains[level] for level in LEVELS}
    refused = {str(level): gains[1 - level] for level in LEVELS}
    margin = threshold < 0
    return Power(
        prompts=interval.prompts,
        conversations=interval.conversations,
        passes=passes,
        refused=refused,
        equal_passes=pass_probability(interval, 0.0, threshold) if margin else None,
        prompts_needed={
            str(level): _prompts_needed(interval, -threshold, level, confidence) for level in LEVELS if margin
        },
    )


def has_power(interval: Interval) -> bool:
    """Whether there is a standard error from which the power follows."""
    return math.isfinite(interval.low) and math.isfinite(interval.error) and interval.error > 0


def pass_probability(interval: Interval, gain: float, threshold: float) -> float:
    """The probability that the rule passes in an examination such as the one of `found`, where `gain` is the true gain."""
    quantile = (interval.value - interval.low) / interval.error
    return _probability(interval.dof, interval.skewness, quantile, (gain - threshold) / interval.error)


def _probability(dof: float, skewness: float, quantile: float, shift: float) -> float:
    """The probability of passing, for a true gain of `shift` standard errors above the threshold."""
    independent = 1 - float(nctdtr(dof, shift, quantile))
    if math.isnan(independent):  # scipy returns NaN at some points where the probability is within 1e-7 of 0 or 1
        independent = float(shift > quantile)
    return float(ndtr(ndtri(independent) / _shrinkage(dof, skewness, quantile)))


def _gain_that_passes(interval: Interval, threshold: float, level: float) -> float:
    """The true gain that passes with probability `level`."""
    quantile = (interval.value - interval.low) / interval.error
    independent = float(ndtr(ndtri(level) * _shrinkage(interval.dof, interval.skewness, quantile)))
    return threshold + interval.error * float(nctdtrinc(interval.dof, 1 - independent, quantile))


def _shrinkage(dof: float, skewness: float, quantile: float) -> float:
    """sqrt((v - c A) / v)."""
    variance = 1 + quantile**2 / (2 * dof)
    return float(max(1 - quantile * skewness / variance, _LEAST_VARIANCE) ** 0.5)


def _prompts_needed(interval: Interval, margin: float, level: float, confidence: float) -> int | None:
    """The fewest units with which an equal draft passes the margin with probability `level`, by bisection.

    The spread of the prompts is an estimate too. So that the number is rarely too small, its upper confidence limit is used
    (Browne 1995, 'On the use of a pilot sample for sample size determination'), and at least 40 units. An examination that has
    the power already needs no more units than it has. None beyond ten million.
    """
    spread = (interval.dof / float(chdtri(interval.dof, _SPREAD_CONFIDENCE))) ** 0.5

    def enough(units: int) -> bool:
        share = units / interval.units
        dof, skewness = max(interval.dof * share, 1.0), interval.skewness / share**0.5
        quantile, _ = standard_errors(dof, skewness, confidence)
        return _probability(dof, skewness, quantile, margin * share**0.5 / (spread * interval.error)) >= level

    most = interval.units if pass_probability(interval, 0.0, -margin) >= level else _MOST_PROMPTS
    low, high = min(_LEAST_PROMPTS, most) - 1, min(_LEAST_PROMPTS, most)
    while high < most and not enough(high):
        low, high = high, min(high * 2, most)
    if high == _MOST_PROMPTS and not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
