"""Intervals of K ratios of sums over any number of prompts: they are added and not stored, so memory is constant, but for prompts
that share a conversation. numpy."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.intervals import Floats, Interval, StratumMoments, interval, pooled, stratum_of_unit

_POWERS = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3), (0, 4))
_ROW = {power: row for row, power in enumerate(_POWERS)}


class RatioSums:
    """K ratios, added block by block and stratified. Up to rounding, the intervals equal those of `ratio_gain` over all prompts
    at once against a baseline of 0.

    For each stratum it holds the sums of numerator^i denominator^j for the powers (i, j) above. They are taken about the first
    block's means, so that little is lost to rounding where the mean is far from 0. The means are rounded, so that sums of whole
    numbers of tokens stay exact.

    The prompts of a conversation are one unit, and may come in different blocks. `shared`: the conversations that have several
    prompts. Their numerators and denominators are held, one sum for each conversation and stratum; every other prompt is a unit.
    Over all strata, a conversation that has prompts in several is one unit (`intervals.stratum_of_unit`).
    """

    def __init__(self, ratios: int, shared: Collection[str] = ()) -> None:
        self._ratios, self._shared = ratios, frozenset(shared)
        self._origin_2K: Floats = np.zeros((2, ratios))
        self._has_origin_K = np.zeros(ratios, dtype=bool)
        self._sums: dict[str, Floats] = {}  # (powers, K) of each stratum, without what is held
        # By conversation and stratum: numerators, denominators, prompts (3, K).
        self._held: dict[str, dict[str, Floats]] = {}
        self._prompts: dict[str, NDArray[np.int64]] = {}  # (K,) of each stratum
        # As `_sums`, with what is held, for one stratum (True) and over all; empty where it has to be computed.
        self._all: dict[bool, dict[str, Floats]] = {}

    def add(
        self,
        numerators_NK: Floats,
        denominators_NK: Floats,
        strata: Sequence[str],
        present_NK: NDArray[np.bool_] | None = None,
        conversations: Sequence[str] | None = None,
    ) -> None:
        """Add N prompts. Where `present_NK` is False, the prompt does not count for that ratio. Without `conversations` each
        prompt is a unit.

        Raises ValueError for arrays of different lengths or NaN.
        """
        if not numerators_NK.shape == denominators_NK.shape == (len(strata), self._ratios):
            raise ValueError("a figure needs one numerator, denominator and stratum for each prompt")
        pairs_2NK = np.stack([numerators_NK, denominators_NK])
        if not np.isfinite(pairs_2NK).all():
            raise ValueError("a figure over NaN or infinite counts is not defined")
        if present_NK is None:
            present_NK = np.ones(numerators_NK.shape, dtype=bool)
        self._all = {}
        labels = np.asarray(strata)
        for label in np.unique(labels):
            counts_K = self._prompts.setdefault(str(label), np.zeros(self._ratios, dtype=np.int64))
            counts_K += present_NK[labels == label].sum(0)
        held_N = np.array([conversation in self._shared for conversation in conversations or ()], dtype=bool)
        if conversations is None or not held_N.any():
            self._add_units(self._sums, pairs_2NK, present_NK, labels)
            return
        counts_N3K = np.concatenate([pairs_2NK * present_NK, present_NK[None]]).swapaxes(0, 1)
        for row in np.flatnonzero(held_N).tolist():
            of_unit = self._held.setdefault(conversations[row], {})
            held_3K = of_unit.get(strata[row])
            if held_3K is None:
                of_unit[strata[row]] = counts_N3K[row].copy()
            else:
                held_3K += counts_N3K[row]
        if not held_N.all():
            self._add_units(self._sums, pairs_2NK[:, ~held_N], present_NK[~held_N], labels[~held_N])

    def _add_units(
        self, sums: dict[str, Floats], pairs_2NK: Floats, present_NK: NDArray[np.bool_], labels: NDArray[np.str_]
    ) -> None:
        """Add units to the sums of their strata."""
        self._choose_origin(pairs_2NK, present_NK)
        x_NK, y_NK = pairs_2NK - self._origin_2K[:, None]
        x2_NK, y2_NK, present = x_NK * x_NK, y_NK * y_NK, present_NK.astype(np.float64)
        x = (present, x_NK * present, x2_NK * present, x2_NK * x_NK * present)
        y = (1.0, y_NK, y2_NK, y2_NK * y_NK, y2_NK * y2_NK)
        powers_PNK = np.stack([x[i] * y[j] for i, j in _POWERS])
        for label in np.unique(labels):
            of_label = sums.setdefault(str(label), np.zeros((len(_POWERS), self._ratios)))
            of_label += powers_PNK[:, labels == label].sum(1)

    def _with_held(self, within: bool) -> Mapping[str, Floats]:
        """The sums of each stratum over all units. `within`: of the part that each unit has within a stratum; otherwise of whole
        units, and some strata are combinations."""
        if not self._held:
            return self._sums
        if within not in self._all:
            sums_within = self._all[within] = {label: sums.copy() for label, sums in self._sums.items()}
            units = [self._held[conversation] for conversation in sorted(self._held)]
            if within:
                parts = [(label, held_3K) for unit in units for label, held_3K in unit.items()]
            else:
                parts = [(stratum_of_unit(unit), np.sum(list(unit.values()), axis=0)) for unit in units]
            held_U3K = np.stack([held_3K for _, held_3K in parts])
            labels = np.array([label for label, _ in parts])
            self._add_units(sums_within, held_U3K[:, :2].swapaxes(0, 1), held_U3K[:, 2] > 0, labels)
        return self._all[within]

    def _choose_origin(self, pairs_2NK: Floats, present_NK: NDArray[np.bool_]) -> None:
        counts_K = present_NK.sum(0)
        new_K = ~self._has_origin_K & (counts_K > 0)
        means_2K = np.round((pairs_2NK * present_NK).sum(1) / np.maximum(counts_K, 1))
        self._origin_2K[:, new_K] = means_2K[:, new_K]
        self._has_origin_K |= new_K

    @property
    def strata(self) -> list[str]:
        return sorted(self._prompts)

    def prompts(self, ratio: int, stratum: str | None = None) -> int:
        """The number of prompts that count for a ratio."""
        return sum(int(self._prompts[label][ratio]) for label in self._labels(stratum))

    def denominator(self, ratio: int, stratum: str | None = None) -> float:
        """Sum of a ratio's denominators, such as the tokens of a rate."""
        return float(sum(self._totals(sums[:, ratio], ratio)[1] for sums in self._chosen(stratum)))

    def interval(self, ratio: int, confidence: float, stratum: str | None = None) -> Interval:
        """Stratified interval of one ratio, over all strata or within one.

        Raises ValueError if there is no prompt or the denominator is not positive.
        """
        parts = [sums[:, ratio] for sums in self._chosen(stratum) if sums[0, ratio]]
        numerator, denominator = (sum(self._totals(part, ratio)[side] for part in parts) for side in (0, 1))
        if not parts or denominator <= 0:
            raise ValueError("a figure over empty counts is not defined; it needs at least one prompt")
        value = numerator / denominator
        weights = [self._weights(part, ratio)[:2] for part in parts]
        groups = [sum(parts[index] for index in group) for group in pooled(weights)]
        moments = [self._moments(np.asarray(group), ratio, value, denominator) for group in groups]
        return interval(value, moments, self.prompts(ratio, stratum), confidence)

    def _totals(self, sums_P: Floats, ratio: int) -> tuple[float, float]:
        """Sums of the numerators and of the denominators."""
        x, y = self._origin_2K[:, ratio] * sums_P[0] + sums_P[1:3]
        return float(x), float(y)

    def _moments(self, sums_P: Floats, ratio: int, value: float, denominator: float) -> StratumMoments:
        """Moments of the residuals (x - value * y) / denominator and of the denominators y, from the sums of one stratum."""
        count, r, at = float(sums_P[0]), value, {power: float(sums_P[row]) for power, row in _ROW.items()}
        first = at[1, 0] - r * at[0, 1]
        second = at[2, 0] - 2 * r * at[1, 1] + r**2 * at[0, 2]
        third = at[3, 0] - 3 * r * at[2, 1] + 3 * r**2 * at[1, 2] - r**3 * at[0, 3]
        mean = first / count
        return StratumMoments(
            units=round(count),
            squares=max(second - first * mean, 0.0) / denominator**2,
            cubes=(third - 3 * mean * second + 2 * count * mean**3) / denominator**3,
            weights=self._weights(sums_P, ratio),
        )

    def _weights(self, sums_P: Floats, ratio: int) -> tuple[float, float, float]:
        """Sums of the denominators, of their squares and of their fourth powers."""
        count, c = float(sums_P[0]), float(self._origin_2K[1, ratio])
        first, second, third, fourth = (float(sums_P[_ROW[0, power]]) for power in (1, 2, 3, 4))
        return (
            count * c + first,
            count * c**2 + 2 * c * first + second,
            count * c**4 + 4 * c**3 * first + 6 * c**2 * second + 4 * c * third + fourth,
        )

    def _chosen(self, stratum: str | None) -> list[Floats]:
        """Sorted by name, so that no figure depends on the order in which domains were added."""
        sums = self._with_held(within=stratum is not None)
        return [sums[label] for label in (sorted(sums) if stratum is None else [stratum])]

    def _labels(self, stratum: str | None) -> list[str]:
        return self.strata if stratum is None else [stratum]
