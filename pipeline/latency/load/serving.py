"""Predicted latency at a stated load, with confidence intervals over conversations. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.acceptance.intervals import Interval, fewer_units
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.prediction import LoadPoint, chosen_lengths, predict
from pipeline.latency.load.workload import Workload

_GROUPS = 20  # groups of conversations in the jackknife


@dataclass(frozen=True)
class LatencyAtLoad:
    """Results at one load and draft length, in seconds; None, and no quantiles, where offered load exceeds capacity."""

    mean: float | None
    speedup: Interval | None  # of the mean latency
    quantiles: Mapping[float, Interval]


def latency_at_load(
    workload: Workload,
    step_costs: StepCosts,
    rate: float,
    cap: int,
    gamma: int,
    *,
    confidence: float,
    quantiles: Sequence[float],
) -> LatencyAtLoad:
    """The latency at `rate` requests per second and batch cap `cap`, with these quantiles of the latency. Intervals are over
    conversations (output lengths and acceptance); step costs are treated as exact."""
    whole = point_at_load(workload, step_costs, rate, cap, gamma)
    parts = [point_at_load(some, step_costs, rate, cap, gamma) for some in _leave_group_out(workload)]

    requests = len(workload.tokens_W)
    conversations = fewer_units(len(np.unique(_units(workload))), requests)

    def interval(figure: Callable[[LoadPoint], float | None]) -> Interval | None:
        estimate = jackknife(figure(whole), [figure(part) for part in parts], requests, confidence)
        return None if estimate is None else replace(estimate, conversations=conversations)

    def at_quantile(quantile: float) -> Interval | None:
        return interval(lambda point: point.speculative.quantile(quantile) if point.speculative else None)

    intervals = {quantile: at_quantile(quantile) for quantile in quantiles}
    return LatencyAtLoad(
        whole.speculative.mean if whole.speculative else None,
        interval(lambda point: point.speedup),
        {quantile: bounds for quantile, bounds in intervals.items() if bounds is not None},
    )


def point_at_load(workload: Workload, step_costs: StepCosts, rate: float, cap: int, gamma: int) -> LoadPoint:
    """As `latency_at_load`, without intervals."""
    return predict(workload, step_costs, chosen_lengths(workload, step_costs, cap, gamma), [rate]).points[0]


def jackknife(whole: float | None, without: list[float | None], prompts: int, confidence: float) -> Interval | None:
    """Interval by the delete-a-group jackknife (Kott 2001): `without` are the figures with one group of prompts left out. Bounds
    are infinite for fewer than two groups; None if `whole` is None."""
    known = np.array([value for value in without if value is not None], dtype=np.float64)
    if whole is None:
        return None
    if len(known) < 2 or len(known) < len(without):  # some subsets are unstable
        return Interval(whole, -np.inf, np.inf, prompts)
    groups = len(known)
    error = np.sqrt((groups - 1) / groups * ((known - known.mean()) ** 2).sum())
    half = float(stdtrit(groups - 1, 0.5 + confidence / 2) * error)
    return Interval(whole, whole - half, whole + half, prompts)


def _leave_group_out(workload: Workload) -> list[Workload]:
    """Neighbouring prompts are often similar, so each group takes every n-th conversation, with all its turns."""
    unit_W = _units(workload)
    groups = min(_GROUPS, int(unit_W.max(initial=-1)) + 1)
    return [_subset(workload, unit_W % groups != group) for group in range(groups)] if groups > 1 else []


def _units(workload: Workload) -> NDArray[np.int64]:
    """The number of the conversation of each request."""
    return np.arange(len(workload.tokens_W)) if workload.unit_W is None else workload.unit_W


def _subset(workload: Workload, keep_W: NDArray[np.bool_]) -> Workload:
    return replace(
        workload,
        prompt_tokens_W=workload.prompt_tokens_W[keep_W],
        tokens_W=workload.tokens_W[keep_W],
        rounds_GW=workload.rounds_GW[:, keep_W],
        variance_GW=workload.variance_GW[:, keep_W],
        unit_W=None,
    )
