"""Confidence intervals for ratios of sums over prompts, alone and paired. numpy, and scipy for Student's t.

Tokens of a prompt are correlated, so prompts are the unit. A figure such as acceptance (accepted mass / tokens) is a
ratio of sums; its variance is that of its linearised residuals, prompts drawn within domains (Cochran 1977, 6.11).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence bounds; `prompts` is the number of independent units behind it."""

    value: float
    low: float
    high: float
    prompts: int


def ratio_interval(numerators_N: Floats, denominators_N: Floats, strata: Sequence[str], confidence: float) -> Interval:
    """Interval of sum(numerators) / sum(denominators) over N prompts, stratified.

    Raises ValueError for empty or unequal input, a denominator sum that is not positive, or NaN. With a single prompt
    in any stratum the bounds are infinite: nothing is known of the spread there.
    """
    _check(numerators_N, denominators_N, strata)
    value = float(numerators_N.sum() / denominators_N.sum())
    return _interval(value, _residuals(numerators_N, denominators_N), strata, confidence)


def ratio_gain(
    numerators_N: Floats,
    denominators_N: Floats,
    base_numerators_N: Floats,
    base_denominators_N: Floats,
    strata: Sequence[str],
    confidence: float,
) -> Interval:
    """Interval of the difference of two ratios over the same N prompts, paired by prompt. Errors as `ratio_interval`."""
    _check(numerators_N, denominators_N, strata)
    _check(base_numerators_N, base_denominators_N, strata)
    if len(numerators_N) != len(base_numerators_N):
        raise ValueError("paired figures need the same prompts on both sides")
    value = float(numerators_N.sum() / denominators_N.sum() - base_numerators_N.sum() / base_denominators_N.sum())
    residuals_N = _residuals(numerators_N, denominators_N) - _residuals(base_numerators_N, base_denominators_N)
    return _interval(value, residuals_N, strata, confidence)


def _check(numerators_N: Floats, denominators_N: Floats, strata: Sequence[str]) -> None:
    if not len(numerators_N) == len(denominators_N) == len(strata) or len(strata) == 0:
        raise ValueError("a figure needs at least one prompt, and one numerator, denominator and stratum for each")
    if not (np.isfinite(numerators_N).all() and np.isfinite(denominators_N).all()) or denominators_N.sum() <= 0:
        raise ValueError("a figure over NaN, infinite or empty counts is not defined")


def _residuals(numerators_N: Floats, denominators_N: Floats) -> Floats:
    """What each prompt adds to the ratio's deviation; they sum to 0."""
    ratio = numerators_N.sum() / denominators_N.sum()
    residuals_N: Floats = (numerators_N - ratio * denominators_N) / denominators_N.sum()
    return residuals_N


def _interval(value: float, residuals_N: Floats, strata: Sequence[str], confidence: float) -> Interval:
    labels = np.asarray(strata)
    variance, freedom = 0.0, 0
    for label in np.unique(labels):
        within_N = residuals_N[labels == label]
        if len(within_N) < 2:
            variance = float("inf")
            break
        variance += len(within_N) * float(within_N.var(ddof=1))
        freedom += len(within_N) - 1
    if not np.isfinite(variance):
        return Interval(value, float("-inf"), float("inf"), len(labels))
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * variance**0.5
    return Interval(value, value - half, value + half, len(labels))
