"""Draft lengths that lost in the measurements themselves, so that no schedule recommends them there. Pure.

Fitted costs smooth over what was measured. Where they state that a length is the fastest, and the user has measured another one
to be faster by more than repeats differ, the measurement is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.server_facts import Cell

Bools = NDArray[np.bool_]

_SAME_LOAD = 1.08  # ratio of two numbers of requests up to which they are one load
_SLACK = 0.01  # loss that a schedule allows anyway


@dataclass(frozen=True)
class Loss:
    """A draft length that was slower than plain decoding in the measurements, by more than repeats differ."""

    gamma: int
    requests: float
    share: float  # 0.2: 20% more time per token


@dataclass(frozen=True)
class _Verdict:
    """Whether one draft length lost at the batch sizes of one load: to any other, and to plain decoding."""

    first: int
    last: int
    lost: bool
    to_plain: bool


@dataclass(frozen=True)
class MeasuredLosses:
    """The loads at which draft lengths lost: to plain decoding, and to the fastest measured length at batch size n, [gamma, n -
    1]."""

    to_plain: tuple[Loss, ...]
    lost_GN: Bools


def measured_losses(
    cells: Sequence[Cell], rounds_G: NDArray[np.float64] | None, gammas: int, cap: int
) -> MeasuredLosses:
    """The losses of draft lengths 0 to `gammas` at batch sizes 1 to `cap`. Rounds are those of the workload by draft length;
    None: the tokens per step are those of the measurements."""
    verdicts: dict[int, list[_Verdict]] = {}
    to_plain = []
    for load in _loads([cell for cell in cells if cell.gamma <= gammas]):
        seconds = {
            cell.gamma: cell.step_seconds / cell.tokens_per_step
            if rounds_G is None
            else cell.step_seconds * rounds_G[cell.gamma]
            for cell in load
        }
        spread = _spreads(load, cells)
        best = min(seconds, key=lambda gamma: seconds[gamma])
        for cell in load:
            plain = cell.gamma > 0 and 0 in seconds and _loses(seconds, spread, cell.gamma, 0)
            lost = plain or _loses(seconds, spread, cell.gamma, best)
            first, last = int(np.floor(cell.batch)), int(np.ceil(cell.requests))
            verdicts.setdefault(cell.gamma, []).append(_Verdict(first, last, lost, plain))
            if plain:
                to_plain.append(Loss(cell.gamma, cell.requests, float(seconds[cell.gamma] / seconds[0] - 1)))
    lost_GN = np.zeros((gammas + 1, cap), dtype=np.bool_)
    for gamma, of_gamma in verdicts.items():
        lost_GN[gamma] = [_lost_at(batch, of_gamma) for batch in range(1, cap + 1)]
        if gamma and len(of_gamma) == 1:  # no second load shows that it would win elsewhere
            lost_GN[gamma] |= of_gamma[0].lost
    known = sorted(verdicts)
    for gamma in set(range(gammas + 1)) - set(known):  # not measured: it does not go before what was
        for beside in ([cell for cell in known if cell < gamma][-1:], [cell for cell in known if cell > gamma][:1]):
            lost_GN[gamma] |= lost_GN[beside].any(0)
    return MeasuredLosses(tuple(sorted(to_plain, key=lambda cell: (cell.gamma, cell.requests))), lost_GN)


def _loads(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells of several draft lengths at one load."""
    cells_of_load: list[Cell] = []
    for cell in sorted(cells, key=lambda cell: cell.requests):
        if cells_of_load and (cell.requests > _SAME_LOAD * cells_of_load[0].requests):
            yield cells_of_load
            cells_of_load = []
        cells_of_load.append(cell)
    if cells_of_load:
        yield cells_of_load


def _spreads(load: Sequence[Cell], cells: Sequence[Cell]) -> dict[int, float]:
    """Relative difference of repeats by draft length; where a cell has none, the mean of the others."""
    known = [cell.spread for cell in cells if cell.spread is not None]
    usual = float(np.mean(known)) if known else 0.0
    return {cell.gamma: usual if cell.spread is None else cell.spread for cell in load}


def _loses(seconds: dict[int, float], spread: dict[int, float], gamma: int, other: int) -> bool:
    return bool(seconds[gamma] > seconds[other] * (1 + _SLACK + max(spread[gamma], spread[other])))


def _lost_at(batch: int, verdicts: Sequence[_Verdict]) -> bool:
    """Whether a length is taken for lost: at a measured load by its verdict. Between two, whether it lost at both; beyond the
    last, whether it lost to plain decoding there, since which of two drafts is faster may change with the load."""
    at = [verdict.lost for verdict in verdicts if verdict.first <= batch <= verdict.last]
    if at:
        return any(at)
    below = [verdict for verdict in verdicts if verdict.last < batch][-1:]
    above = [verdict for verdict in verdicts if verdict.first > batch][:1]
    sides = [*below, *above]
    return all(verdict.lost for verdict in sides) if len(sides) > 1 else sides[0].to_plain


def said_of_losses(losses: Sequence[Loss]) -> list[str]:
    """A sentence for each draft length that was slower than plain decoding somewhere."""
    said = []
    for gamma, group in groupby(losses, key=lambda loss: loss.gamma):
        of_gamma = list(group)
        loads = ", ".join(f"{loss.requests:g} (by {loss.share:.0%})" for loss in of_gamma)
        said.append(
            f"measured: draft length {gamma} was slower than plain decoding at {loads} requests; it is not used there"
        )
    return said
