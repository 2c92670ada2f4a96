"""Confidence intervals for ratios of sums over prompts, single (streaming) and paired. numpy, and scipy for Student's t.

Tokens of a prompt are correlated, so the prompt is the sampling unit. A figure such as the acceptance rate (sum of a_t /
tokens) is a ratio of sums; its variance is that of the linearised residuals, stratified by domain (Cochran 1977, 6.11).
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
    """An estimate with its confidence bounds; `prompts` is the number of independent units."""

    value: float
    low: float
    high: float
    prompts: int

    def json(self) -> dict[str, Any]:
        """As JSON; infinite bounds are null."""
        bounds = {"low": self.low, "high": self.high}
        return {
            "value": self.value,
            "prompts": self.prompts,
            **{name: bound if np.isfinite(bound) else None for name, bound in bounds.items()},
        }


class _Stratum:
    """Counts, sums and centred products of K ratios over the prompts of one stratum; prompts are not stored."""

    def __init__(self, ratios: int) -> None:
        self.prompts_K = np.zeros(ratios)
        self.sums_2K = np.zeros((2, ratios))  # of numerators and denominators
        self.products_3K = np.zeros(
            (3, ratios)
        )  # centred: numerator squared, numerator denominator, denominator squared

    def add(self, pairs_2NK: Floats, present_NK: NDArray[np.bool_]) -> None:
        """Add a block of prompts; centred products of two blocks are merged exactly (Chan, Golub and LeVeque 1983)."""
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
    """K ratios of sums over any number of prompts, in constant memory.

    Prompts are added block by block and not stored. Up to rounding, the intervals equal those of `ratio_gain` over all
    prompts at once against a baseline of 0.
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
        """Add N prompts. Where `present_NK` is False, the prompt does not count for that ratio.

        Raises ValueError for arrays of different lengths or NaN.
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
        """The number of prompts that count for a ratio."""
        return sum(int(part.prompts_K[ratio]) for part in self._chosen(stratum))

    def denominator(self, ratio: int, stratum: str | None = None) -> float:
        """Sum of a ratio's denominators, such as the tokens of a rate."""
        return float(sum(part.sums_2K[1, ratio] for part in self._chosen(stratum)))

    def interval(self, ratio: int, confidence: float, stratum: str | None = None) -> Interval:
        """Stratified interval of one ratio, over all strata or within one.

        Raises ValueError if there is no prompt or the denominator is not positive. If any stratum has a single prompt, its
        variance is unknown and the bounds are infinite.
        """
        parts = [part for part in self._chosen(stratum) if part.prompts_K[ratio]]
        total = sum(float(part.sums_2K[1, ratio]) for part in parts)
        if not parts or total <= 0:
            raise ValueError("a figure over empty counts is not defined; it needs at least one prompt")
        value = sum(float(part.sums_2K[0, ratio]) for part in parts) / total
        prompts, variance, dof = 0, 0.0, 0
        for part in parts:
            count = int(part.prompts_K[ratio])
            prompts, dof = prompts + count, dof + count - 1
            squared, crossed, base = part.products_3K[:, ratio]
            spread = max(float(squared - 2 * value * crossed + value * value * base), 0.0) / total**2
            variance += count * spread / (count - 1) if count > 1 else float("inf")
        return _interval(value, variance, dof, prompts, confidence)

    def _chosen(self, stratum: str | None) -> list[_Stratum]:
        """Sorted by name, so that no figure depends on the order in which domains were added."""
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

    Raises ValueError for empty arrays, arrays of different lengths, a denominator sum that is not positive, or NaN. If any
    stratum has a single prompt, the bounds are infinite.
    """
    _check(numerators_N, denominators_N, strata)
    _check(base_numerators_N, base_denominators_N, strata)
    if len(numerators_N) != len(base_numerators_N):
        raise ValueError("paired figures need the same prompts on both sides")
    value = float(numerators_N.sum() / denominators_N.sum() - base_numerators_N.sum() / base_denominators_N.sum())
    residuals_N = _residuals(numerators_N, denominators_N) - _residuals(base_numerators_N, base_denominators_N)
    return _interval(value, *_stratified_variance(residuals_N, strata), len(residuals_N), confidence)


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


def _stratified_variance(residuals_N: Floats, strata: Sequence[str]) -> tuple[float, int]:
    """Stratified variance of the sum of the residuals, and its degrees of freedom."""
    labels = np.asarray(strata)
    variance, dof = 0.0, 0
    for label in np.unique(labels):
        within_N = residuals_N[labels == label]
        if len(within_N) < 2:
            return float("inf"), 0
        variance += len(within_N) * float(within_N.var(ddof=1))
        dof += len(within_N) - 1
    return variance, dof


def _interval(value: float, variance: float, dof: int, prompts: int, confidence: float) -> Interval:
    if not np.isfinite(variance):
        return Interval(value, float("-inf"), float("inf"), prompts)
    half = float(stdtrit(dof, 0.5 + confidence / 2)) * variance**0.5
    return Interval(value, value - half, value + half, prompts)
