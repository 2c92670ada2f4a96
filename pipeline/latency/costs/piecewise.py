"""Costs of a step that no line fits: what a token adds depends on how many there are. Pure.

A target's pass over T = requests * (gamma + 1) tokens is not a line in T: tokens are free while weights are being read, dear once
arithmetic decides, and cheaper again when a tile of a processor has been begun. So the costs of the line (`fit.py`) are joined by

    sum over k = 4, 16, 64, ...  of  a_k min(T, k) + b_k max(T - k, 0)   +   (once + each * requests)  where gamma > 0,

none below 0: a surface that only ever rises, concave where the a are, convex where the b are; the draft's gamma passes, each over
as many tokens as there are requests, have such pieces of their own. The last part is what speculation takes whatever it drafts:
accepting, and the draft's own bookkeeping. Where that predicts better, steps of T are added: tokens come in tiles of 16 or 64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.fit import Experts, columns, least_squares

Floats = NDArray[np.float64]

_SPACING = 4.0  # from one bend to the next: fewer are too few for real machines, more follow the noise
_TILES = (16.0, 64.0)  # of processors and of GPUs
_RIDGE = 1e-3  # of relative errors squared: shares a cost out among terms that the measurements hardly tell apart


@dataclass(frozen=True)
class Piecewise:
    """A fitted surface; `values_K` belong to the columns that the places of bends and `experts` make."""

    breakpoints: tuple[float, ...]  # tokens of the target's pass
    draft_breakpoints: tuple[float, ...]  # tokens of one of the draft's, which are requests
    tiles: tuple[float, ...]  # tokens of the target's pass that take as long as the last of them
    values_K: tuple[float, ...]
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """As `Costs.step_seconds`."""
        columns = _columns(batch, gamma, self.experts, self.breakpoints, self.draft_breakpoints, self.tiles)
        seconds: Floats = columns @ np.array(self.values_K)
        return seconds


def fit_piecewise(
    batch_R: Floats, gamma_R: Floats, step_seconds_R: Floats, experts: Experts | None
) -> tuple[Piecewise, float, float]:
    """From R measured steps, of which no two have one place. Also the mean relative errors in predicting each step from the
    others: by the line, and by these; with tiles where those make it less."""
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
    """Of the target's passes and of the draft's: below the most tokens that each was measured with."""
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
