"""Piecewise linear costs of a decoding step, for hardware where step time is not linear in the number of tokens. Pure.

In a target pass over T = requests * (gamma + 1) tokens, tokens are nearly free while the pass is bound by memory bandwidth
and expensive once it is bound by compute. The linear model (`fit.py`) is extended by

    sum over k = 4, 16, 64, ...  of  a_k min(T, k) + b_k max(T - k, 0)   +   (once + each * requests)  where gamma > 0,

with no coefficient below 0, so the time never falls with T. The a_k give concave parts, the b_k convex parts. Each of the
gamma draft passes over `requests` tokens has such terms too. The last term is the fixed cost of speculation: verification
logic and bookkeeping of the draft. T rounded up to a multiple of 16 or 64 (hardware tiles) is added if that lowers the
leave-one-out error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.fit import Experts, columns, least_squares

Floats = NDArray[np.float64]

_SPACING = 4.0  # ratio of two breakpoints: wider misses real effects, narrower fits noise
_TILES = (16.0, 64.0)  # tokens per tile: CPUs and GPUs
_RIDGE = 1e-3  # ridge penalty: spreads a cost over terms that are nearly collinear


@dataclass(frozen=True)
class Piecewise:
    """A fitted piecewise model; `values_K` are the coefficients of the columns of `_columns`."""

    breakpoints: tuple[float, ...]  # in tokens of a target pass
    draft_breakpoints: tuple[float, ...]  # in tokens of a draft pass (= requests)
    tiles: tuple[float, ...]  # tile sizes in tokens of a target pass; empty: no tile terms
    values_K: tuple[float, ...]
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """As `LinearCosts.step_seconds`."""
        columns = _columns(batch, gamma, self.experts, self.breakpoints, self.draft_breakpoints, self.tiles)
        seconds: Floats = columns @ np.array(self.values_K)
        return seconds


def fit_piecewise(
    batch_R: Floats, gamma_R: Floats, step_seconds_R: Floats, experts: Experts | None
) -> tuple[Piecewise, float, float]:
    """Fit R measured steps at distinct (batch, gamma) points, with or without tiles, whichever has the smaller leave-one-out
    error. Returns the model, the leave-one-out error of the linear model, and its own."""
    breakpoints = _breakpoints(batch_R, gamma_R)
    found = []
    for tiles in ((), _TILES):
        columns_RK = _columns(batch_R, gamma_R, experts, *breakpoints, tiles)
        values = tuple(least_squares(columns_RK, step_seconds_R, _RIDGE).tolist())
        found.append(
            (_leave_one_out(columns_RK, step_seconds_R, _RIDGE), Piecewise(*breakpoints, tiles, values, experts))
        )
    error, best = min(found, key=lambda one: one[0])
    return best, _leave_one_out(columns(batch_R, gamma_R, experts), step_seconds_R, 0.0), error


def _leave_one_out(columns_RK: Floats, seconds_R: Floats, ridge: float) -> float:
    others = [np.delete(np.arange(len(seconds_R)), row) for row in range(len(seconds_R))]
    predictions = [
        columns_RK[row] @ least_squares(columns_RK[kept], seconds_R[kept], ridge) for row, kept in enumerate(others)
    ]
    return float(np.abs(np.array(predictions) / seconds_R - 1).mean())


def _breakpoints(batch_R: Floats, gamma_R: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Breakpoints of target passes and of draft passes, below the largest measured number of tokens."""
    return _powers(float((batch_R * (gamma_R + 1)).max())), _powers(float(batch_R.max()))


def _powers(most: float) -> tuple[float, ...]:
    return tuple(_SPACING**power for power in range(1, 32) if _SPACING**power < most)


def _columns(
    batch: ArrayLike,
    gamma: ArrayLike,
    experts: Experts | None,
    breakpoints: Sequence[float],
    draft_breakpoints: Sequence[float],
    tiles: Sequence[float],
) -> Floats:
    batch, gamma = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
    tokens, speculating = batch * (gamma + 1), (gamma > 0).astype(np.float64)
    verified = [part for k in breakpoints for part in _pieces(tokens, k)] + [
        np.ceil(tokens / tile) * tile for tile in tiles
    ]
    drafted = [gamma * part for k in draft_breakpoints for part in _pieces(batch, k)]
    return np.concatenate(
        [columns(batch, gamma, experts), np.stack([speculating, batch * speculating, *verified, *drafted], axis=-1)],
        axis=-1,
    )


def _pieces(tokens: Floats, knot: float) -> tuple[Floats, Floats]:
    return np.minimum(tokens, knot), np.maximum(tokens - knot, 0.0)
