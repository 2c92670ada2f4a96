"""What measurements of a server state beside the costs that are fitted to its steps: facts, and the cells. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    tokens_per_step: float  # the step / the time per token: less than the counters state where outputs are short
    spread: float | None = None  # time per token: the largest of the repeats / the smallest - 1; None without repeats


def measured_cells(measured: Sequence[Measurement]) -> tuple[Cell, ...]:
    """The cells in order of draft length and load. Steps that were measured without requests are none."""
    if any(measurement.isolated for measurement in measured):
        return ()
    return tuple(map(_cell, repeated(measured)))


def _cell(repeats: Sequence[Measurement]) -> Cell:
    token_seconds = [repeat.token_seconds or repeat.step_seconds / repeat.tokens_per_step for repeat in repeats]
    step = float(np.mean([repeat.step_seconds for repeat in repeats]))
    return Cell(
        repeats[0].gamma,
        float(np.mean([repeat.requests for repeat in repeats])),
        float(np.mean([repeat.in_batch or repeat.requests for repeat in repeats])),
        step,
        step / float(np.mean(token_seconds)),
        max(token_seconds) / min(token_seconds) - 1 if len(repeats) > 1 else None,
    )


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Facts of step costs. The defaults are those of forward times, for which no requests were measured."""

    plain: bool = True  # whether plain decoding was measured, the baseline of a speedup
    measured_requests: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # fewest and most, by draft length
    tokens_by_gamma: Mapping[int, float] = field(default_factory=dict)  # measured tokens per step; empty if unknown
    tokens_error: float = 0.0  # mean absolute relative error of these on left-out measurements
    acceptance_known: bool = True  # False: `tokens_by_gamma` are no measurements; only times per token are
    output_tokens: float | None = None  # mean output length of the measured requests
    first_token: float = 0.0  # TTFT of a request that is alone, in seconds; 0 if unknown
    max_throughput: tuple[float, float] | None = None  # measured tokens per second, of plain decoding and of all
    cells: tuple[Cell, ...] = ()  # what was measured at each load and draft length
