"""What was measured at each load and draft length, beside the costs that are fitted to it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.repeats import repeated


@dataclass(frozen=True)
class Cell:
    """The mean of the repeats of one load at one draft length."""

    gamma: int
    requests: float  # of a closed loop: its concurrency
    batch: float  # mean number in the batch
    step_seconds: float
    tokens_per_step: float  # the step / the time per token: less than the counters say where outputs are short
    spread: float | None = None  # time per token: the largest of the repeats / the smallest - 1; None without repeats


def measured_cells(measured: Sequence[Measurement]) -> tuple[Cell, ...]:
    """The cells in order of draft length and load. Steps that were measured without requests are none."""
    if any(one.isolated for one in measured):
        return ()
    return tuple(map(_cell, repeated(measured)))


def _cell(repeats: Sequence[Measurement]) -> Cell:
    token_seconds = [one.token_seconds or one.step_seconds / one.tokens_per_step for one in repeats]
    step = float(np.mean([one.step_seconds for one in repeats]))
    return Cell(
        repeats[0].gamma,
        float(np.mean([one.requests for one in repeats])),
        float(np.mean([one.in_batch or one.requests for one in repeats])),
        step,
        step / float(np.mean(token_seconds)),
        max(token_seconds) / min(token_seconds) - 1 if len(repeats) > 1 else None,
    )
