"""Confidence intervals for ratios of sums over prompts, from the moments of their residuals. numpy, and scipy for Student's t.

Tokens of a prompt are correlated, and so are the turns of a conversation. So the conversation is the sampling unit: numerators
and denominators are summed within it (cluster sampling, Cochran 1977, 9A; for evaluations of models Miller 2024, 'Adding error
bars to evals', arXiv 2411.00640). A prompt without other turns is a conversation of its own. A figure such as the acceptance rate
(sum of a_t / tokens) is a ratio of sums; its variance is that of the linearised residuals, stratified by domain (Cochran 1977,
6.11). The conversations that are in several domains are a stratum of their own.

Three corrections make the bounds cover where units are few or unequal (`python -m tests.benchmarks coverage`):
- Unequal lengths: a stratum counts as its effective number of units, (sum w)^2 / sum w^2 with w the examined tokens (Kish
  1965), in the variance and in the degrees of freedom. Below 20 effective units the degrees of freedom are Satterthwaite's
  for those lengths, (sum w^2)^2 / sum w^4 - 1, which are fewer. Strata combine by Satterthwaite's formula too.
- Skewness: each bound is the wider of Student's t and of Hall's transformation for skewed data (Hall 1992), which alone would
  be too narrow for heavy symmetric tails.
- A domain of fewer than 5 effective units shows too little of its own variance: one of 5 prompts, of which two have most of
  the tokens, took the interval of all the others away. Such domains are pooled into one stratum, which can only widen the
  interval (collapsed strata, Cochran 1977, 5A.12).
With fewer than 5 degrees of freedom there is no interval: the bounds are infinite.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.acceptance.schema import Figure

Floats = NDArray[np.float64]

_ENOUGH = 20  # effective units of a stratum from which its degrees of freedom are those of equal prompts
_LEAST_DOF = 5  # fewer give no interval
_LEAST_STRATUM = 5 - 1e-9  # effective units of a stratum of its own; rounding decides nothing


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence bounds, over `prompts` prompts. `conversations`: the number of independent units, if it is
    smaller because some prompts are turns of one conversation; otherwise None.

    `error` is the standard error, `dof` its degrees of freedom and `skewness` that of the estimate: the power of a test follows
    from them. They are NaN where the interval was not made from them, are not compared, and are not in files.
    """

    value: float
    low: float
    high: float
    prompts: int
    error: float = field(default=float("nan"), compare=False, repr=False)
    dof: float = field(default=float("nan"), compare=False, repr=False)
    skewness: float = field(default=float("nan"), compare=False, repr=False)
    conversations: int | None = field(default=None, kw_only=True)

    @property
    def units(self) -> int:
        """The number of independent units."""
        return self.prompts if self.conversations is None else self.conversations

    @property
    def figure(self) -> Figure:
        """The figure as files have it: bounds that are infinite are not known."""
        low, high = (float(bound) if np.isfinite(bound) else None for bound in (self.low, self.high))
        return Figure(float(self.value), low, high, int(self.prompts), self.conversations)


@dataclass(frozen=True, kw_only=True)
class StratumMoments:
    """What an interval needs of one stratum: the moments of its units' residuals, and of their weights (denominators)."""

    units: int
    squares: float  # sum of (residual - mean residual)^2
    cubes: float  # sum of (residual - mean residual)^3
    weights: tuple[float, float, float]  # sums of the weights, of their squares and of their fourth powers

    @property
    def effective_units(self) -> float:
        """Kish's effective number of units."""
        return _kish(*self.weights[:2])

    @property
    def variance(self) -> float:
        """The variance of the sum of the residuals. Infinite for one effective unit."""
        if self.squares == 0:
            return 0.0
        effective = self.effective_units
        return effective / (effective - 1) * self.squares if effective > 1 else float("inf")

    @property
    def third_moment(self) -> float:
        """Third central moment of the sum of the residuals, unbiased for equal weights; 0 for two units."""
        count = self.units
        return count**2 / ((count - 1) * (count - 2)) * self.cubes if count > 2 else 0.0

    @property
    def degrees_of_freedom(self) -> float:
        if self.effective_units >= _ENOUGH:
            return self.effective_units - 1
        _, squares, fourths = self.weights
        return squares**2 / fourths - 1 if fourths > 0 else 0.0


def interval(value: float, strata: Sequence[StratumMoments], prompts: int, confidence: float) -> Interval:
    """The interval of a figure over `prompts` prompts, whose units have residuals of these moments. Small strata must be pooled
    before (`pooled`)."""
    conversations = fewer_units(sum(stratum.units for stratum in strata), prompts)
    variance = sum(stratum.variance for stratum in strata)
    dof = _combined(strata, variance)
    if not np.isfinite(variance) or min(dof, _effective(strata) - 1) < _LEAST_DOF:
        return Interval(value, float("-inf"), float("inf"), prompts, conversations=conversations)
    if variance == 0:
        return Interval(value, value, value, prompts, conversations=conversations)
    error = variance**0.5
    skewness = sum(stratum.third_moment for stratum in strata) / variance**1.5
    below, above = standard_errors(dof, skewness, confidence)
    low, high = value - below * error, value + above * error
    return Interval(value, low, high, prompts, error, dof, skewness, conversations=conversations)


def fewer_units(units: int, prompts: int) -> int | None:
    """The number of conversations, if it is not that of the prompts."""
    return None if units == prompts else units


def standard_errors(dof: float, skewness: float, confidence: float) -> tuple[float, float]:
    """How many standard errors the interval extends below and above an estimate with this skewness."""
    quantile = float(stdtrit(dof, 0.5 + confidence / 2))
    below = max(quantile, _without_skewness(quantile, skewness))
    above = max(quantile, -_without_skewness(-quantile, skewness))
    return below, above


def _effective(strata: Sequence[StratumMoments]) -> float:
    """Kish's effective number of all units: a stratum that happens not to vary lends no certainty to few heavy units."""
    return _kish(*(sum(stratum.weights[power] for stratum in strata) for power in (0, 1)))


def _combined(strata: Sequence[StratumMoments], variance: float) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances; 0 if a stratum that varies has none."""
    if not np.isfinite(variance):
        return 0.0
    if variance == 0:
        return sum(stratum.degrees_of_freedom for stratum in strata)
    varying = [stratum for stratum in strata if stratum.variance > 0]
    if any(stratum.degrees_of_freedom <= 0 for stratum in varying):
        return 0.0
    return variance**2 / sum(stratum.variance**2 / stratum.degrees_of_freedom for stratum in varying)


def _without_skewness(quantile: float, skewness: float) -> float:
    """Inverse of Hall's transformation g(t) = t + A t^2 / 3 + A^2 t^3 / 27 + A / 6, which takes the skewness A of the estimate
    out of its t statistic (Hall 1992, 'On the removal of skewness by transformation')."""
    if abs(skewness) < 1e-6:
        return quantile
    return float(3 / skewness * (np.cbrt(1 + skewness * (quantile - skewness / 6)) - 1))


def pooled(weights: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Groups of strata, by index, so that no group has fewer than 5 effective units unless all together have fewer. `weights`:
    the sums of each stratum's weights and of their squares.

    Strata with fewer are put together. If these still have fewer, they join the smallest of the others.
    """
    of_stratum = [_kish(*sums) for sums in weights]
    small = [index for index, units in enumerate(of_stratum) if units < _LEAST_STRATUM]
    groups = [[index] for index, units in enumerate(of_stratum) if units >= _LEAST_STRATUM]
    together = _kish(*(sum(weights[index][power] for index in small) for power in (0, 1)))
    if small and groups and together < _LEAST_STRATUM:
        min(groups, key=lambda group: of_stratum[group[0]]).extend(small)
    elif small:
        groups.append(small)
    return groups


def _kish(total: float, squares: float) -> float:
    """The effective number of units, from the sums of their weights and of the squares."""
    return total**2 / squares if squares > 0 else 0.0


def ratio_gain(
    numerators_N: Floats,
    denominators_N: Floats,
    base_numerators_N: Floats,
    base_denominators_N: Floats,
    strata: Sequence[str],
    confidence: float,
    conversations: Sequence[str] | None = None,
) -> Interval:
    """Interval of the difference of two ratios over the same N prompts, paired by prompt. Weights are the first denominators.
    Prompts of one of `conversations` are one unit; None: each is a unit. `strata`: of the prompts, see `stratum_of_unit`.

    Two sides that are equal for every prompt differ by exactly 0, however few the prompts are. Raises ValueError for empty
    arrays, arrays of different lengths, a denominator sum that is not positive, or NaN.
    """
    _check(numerators_N, denominators_N, strata)
    _check(base_numerators_N, base_denominators_N, strata)
    if len(numerators_N) != len(base_numerators_N):
        raise ValueError("paired figures need the same prompts on both sides")
    prompts = len(strata)
    place_N, strata = _units(strata, conversations)  # from here on those of units
    if np.array_equal(numerators_N, base_numerators_N) and np.array_equal(denominators_N, base_denominators_N):
        return Interval(0.0, 0.0, 0.0, prompts, conversations=fewer_units(len(strata), prompts))
    numerators_N, denominators_N = (_sums(values_N, place_N) for values_N in (numerators_N, denominators_N))
    base_numerators_N, base_denominators_N = (
        _sums(values_N, place_N) for values_N in (base_numerators_N, base_denominators_N)
    )
    value = float(numerators_N.sum() / denominators_N.sum() - base_numerators_N.sum() / base_denominators_N.sum())
    residuals_N = _residuals(numerators_N, denominators_N) - _residuals(base_numerators_N, base_denominators_N)
    _, stratum_N = np.unique(np.asarray(strata), return_inverse=True)
    sums_2S = [np.bincount(stratum_N, denominators_N**power) for power in (1, 2)]
    moments = []
    for group in pooled(list(zip(*(sums_S.tolist() for sums_S in sums_2S), strict=True))):
        inside_S = np.zeros(len(sums_2S[0]), dtype=bool)
        inside_S[group] = True
        rows_N = inside_S[stratum_N]
        moments.append(_moments(residuals_N[rows_N], denominators_N[rows_N]))
    return interval(value, moments, prompts, confidence)


def stratum_of_unit(strata: Iterable[str]) -> str:
    """The stratum of a unit whose prompts are of these strata: itself, or the combination. A conversation that is asked in two
    domains, such as in two template modes, is one unit, and no unit of either."""
    return "\0".join(sorted(set(strata)))


def _units(strata: Sequence[str], conversations: Sequence[str] | None) -> tuple[NDArray[np.int64], Sequence[str]]:
    """The unit of each of N prompts, numbered by first appearance, and the stratum of each unit."""
    if conversations is None:
        return np.arange(len(strata), dtype=np.int64), strata
    of_units: dict[str, list[str]] = {}
    for stratum, conversation in zip(strata, conversations, strict=True):
        of_units.setdefault(conversation, []).append(stratum)
    number = {conversation: place for place, conversation in enumerate(of_units)}
    return np.array([number[conversation] for conversation in conversations]), [
        stratum_of_unit(unit) for unit in of_units.values()
    ]


def _sums(values_N: Floats, place_N: NDArray[np.int64]) -> Floats:
    """The sums over the prompts of each unit."""
    found_U: Floats = np.bincount(place_N, values_N).astype(np.float64)
    return found_U


def _check(numerators_N: Floats, denominators_N: Floats, strata: Sequence[str]) -> None:
    if not len(numerators_N) == len(denominators_N) == len(strata) or len(strata) == 0:
        raise ValueError("a figure needs at least one prompt, and one numerator, denominator and stratum for each")
    if not (np.isfinite(numerators_N).all() and np.isfinite(denominators_N).all()) or denominators_N.sum() <= 0:
        raise ValueError("a figure over NaN, infinite or empty counts is not defined")


def _residuals(numerators_N: Floats, denominators_N: Floats) -> Floats:
    """Linearised residuals of the ratio, one per prompt; they sum to 0."""
    ratio = numerators_N.sum() / denominators_N.sum()
    residuals_N: Floats = (numerators_N - ratio * denominators_N) / denominators_N.sum()
    return residuals_N


def _moments(residuals_N: Floats, weights_N: Floats) -> StratumMoments:
    centred_N = residuals_N - residuals_N.mean()
    return StratumMoments(
        units=len(residuals_N),
        squares=float((centred_N**2).sum()),
        cubes=float((centred_N**3).sum()),
        weights=(float(weights_N.sum()), float((weights_N**2).sum()), float((weights_N**4).sum())),
    )
