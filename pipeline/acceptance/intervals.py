"""Confidence intervals for ratios of sums over prompts, alone (streaming) and paired. numpy, and scipy for Student's t.

Tokens of a prompt are correlated, so prompts are the unit. A figure such as acceptance (accepted mass / tokens) is a
ratio of sums; its variance is that of its linearised residuals, prompts drawn within domains (Cochran 1977, 6.11).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    def json(self) -> dict[str, Any]:
        """JSON has no infinity: unknown bounds are null."""
        bounds = {"low": self.low, "high": self.high}
        return {
            "value": self.value,
            "prompts": self.prompts,
            **{name: bound if np.isfinite(bound) else None for name, bound in bounds.items()},
        }


class _Stratum:
    """Counts, sums and centred products of K ratios over the prompts of one stratum, prompt by prompt forgotten."""

    def __init__(self, ratios: int) -> None:
        self.prompts_K = np.zeros(ratios)
        self.sums_2K = np.zeros((2, ratios))  # of numerators and denominators
        self.products_3K = np.zeros(
            (3, ratios)
        )  # centred: numerator squared, numerator denominator, denominator squared

    def add(self, pairs_2NK: Floats, present_NK: NDArray[np.bool_]) -> None:
        """Join a block of prompts; products of two blocks join exactly (Chan, Golub and LeVeque 1983)."""
        prompts_K, sums_2K = present_NK.sum(0), (pairs_2NK * present_NK).sum(1)
        means_2K = sums_2K / np.maximum(prompts_K, 1)
        centred_2NK = (pairs_2NK - means_2K[:, None]) * present_NK
        shift_2K = means_2K - self.sums_2K / np.maximum(self.prompts_K, 1)
        weight_K = self.prompts_K * prompts_K / np.maximum(self.prompts_K + prompts_K, 1)
        for row, (one, other) in enumerate(((0, 0), (0, 1), (1, 1))):
            self.products_3K[row] += (centred_2NK[one] * centred_2NK[other]).sum(0)
            self.products_3K[row] += weight_K * shift_2K[one] * shift_2K[other]
        self.prompts_K += prompts_K
        self.sums_2K += sums_2K


class RatioSums:
    """K ratios of sums over any number of prompts, in memory that does not grow with them.

    Prompts are added block by block and forgotten; the intervals are those that `ratio_gain` over all of them at once
    gives against nothing, but for rounding.
    """

    def __init__(self, ratios: int) -> None:
        self._ratios = ratios
        self._strata: dict[str, _Stratum] = {}

    def add(
        self,
        numerators_NK: Floats,
        denominators_NK: Floats,
        strata: Sequence[str],
        present_NK: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add N prompts. Where `present_NK` is False a prompt has nothing to say about a ratio and is no unit of it.

        Raises ValueError for unequal input or NaN.
        """
        if not numerators_NK.shape == denominators_NK.shape == (len(strata), self._ratios):
            raise ValueError("a figure needs one numerator, denominator and stratum for each prompt")
        pairs_2NK = np.stack([numerators_NK, denominators_NK])
        if not np.isfinite(pairs_2NK).all():
            raise ValueError("a figure over NaN or infinite counts is not defined")
        if present_NK is None:
            present_NK = np.ones(numerators_NK.shape, dtype=bool)
        labels = np.asarray(strata)
        for label in np.unique(labels):
            rows = labels == label
            stratum = self._strata.setdefault(str(label), _Stratum(self._ratios))
            stratum.add(pairs_2NK[:, rows], present_NK[rows])

    @property
    def strata(self) -> list[str]:
        return sorted(self._strata)

    def prompts(self, ratio: int, stratum: str | None = None) -> int:
        """Prompts behind a ratio."""
        return sum(int(part.prompts_K[ratio]) for part in self._chosen(stratum))

    def denominator(self, ratio: int, stratum: str | None = None) -> float:
        """Sum of a ratio's denominators, such as the tokens behind a rate."""
        return float(sum(part.sums_2K[1, ratio] for part in self._chosen(stratum)))

    def interval(self, ratio: int, confidence: float, stratum: str | None = None) -> Interval:
        """Stratified interval of one ratio, over all strata or within one.

        Raises ValueError where there is no prompt or no positive denominator. With a single prompt in any stratum the
        bounds are infinite: nothing is known of the spread there.
        """
        parts = [part for part in self._chosen(stratum) if part.prompts_K[ratio]]
        total = sum(float(part.sums_2K[1, ratio]) for part in parts)
        if not parts or total <= 0:
            raise ValueError("a figure over empty counts is not defined; it needs at least one prompt")
        value = sum(float(part.sums_2K[0, ratio]) for part in parts) / total
        prompts, variance, freedom = 0, 0.0, 0
        for part in parts:
            count = int(part.prompts_K[ratio])
            prompts, freedom = prompts + count, freedom + count - 1
            squared, crossed, base = part.products_3K[:, ratio]
            spread = max(float(squared - 2 * value * crossed + value * value * base), 0.0) / total**2
            variance += count * spread / (count - 1) if count > 1 else float("inf")
        return _interval(value, variance, freedom, prompts, confidence)

    def _chosen(self, stratum: str | None) -> list[_Stratum]:
        """In the order of their names, so that no figure depends on which domain came first."""
        return [self._strata[label] for label in self.strata] if stratum is None else [self._strata[stratum]]


def ratio_gain(
    numerators_N: Floats,
    denominators_N: Floats,
    base_numerators_N: Floats,
    base_denominators_N: Floats,
    strata: Sequence[str],
    confidence: float,
) -> Interval:
    """Interval of the difference of two ratios over the same N prompts, paired by prompt.

    Raises ValueError for empty or unequal input, a denominator sum that is not positive, or NaN. With a single prompt
    in any stratum the bounds are infinite.
    """
    _check(numerators_N, denominators_N, strata)
    _check(base_numerators_N, base_denominators_N, strata)
    if len(numerators_N) != len(base_numerators_N):
        raise ValueError("paired figures need the same prompts on both sides")
    value = float(numerators_N.sum() / denominators_N.sum() - base_numerators_N.sum() / base_denominators_N.sum())
    residuals_N = _residuals(numerators_N, denominators_N) - _residuals(base_numerators_N, base_denominators_N)
    return _interval(value, *_within(residuals_N, strata), len(residuals_N), confidence)


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


def _within(residuals_N: Floats, strata: Sequence[str]) -> tuple[float, int]:
    """Variance of the residuals' sum, prompts drawn within strata, and its degrees of freedom."""
    labels = np.asarray(strata)
    variance, freedom = 0.0, 0
    for label in np.unique(labels):
        within_N = residuals_N[labels == label]
        if len(within_N) < 2:
            return float("inf"), 0
        variance += len(within_N) * float(within_N.var(ddof=1))
        freedom += len(within_N) - 1
    return variance, freedom


def _interval(value: float, variance: float, freedom: int, prompts: int, confidence: float) -> Interval:
    if not np.isfinite(variance):
        return Interval(value, float("-inf"), float("inf"), prompts)
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * variance**0.5
    return Interval(value, value - half, value + half, prompts)
