"""What a stated load gets from a pair on a stated machine, with what the choice of prompts leaves open. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.acceptance.intervals import Interval
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.prediction import LoadPoint, chosen_lengths, predict
from pipeline.latency.load.workload import Workload

_GROUPS = 20  # of prompts, one of which is left out in turn


@dataclass(frozen=True)
class LatencyAtLoad:
    """A load at one draft length; None where a way is not stable at it. Seconds."""

    mean: float | None
    plain_mean: float | None
    speedup: Interval | None  # of the mean latency
    p95: Interval | None


def latency_at_load(
    workload: Workload, step_costs: StepCosts, rate: float, cap: int, gamma: int, confidence: float
) -> LatencyAtLoad:
    """At `rate` requests a second, at most `cap` served at once. Intervals are over prompts: which answers are long and how well
    they are guessed; that the machine takes as long as it did is taken for granted."""
    whole = point_at_load(workload, step_costs, rate, cap, gamma)
    parts = [point_at_load(some, step_costs, rate, cap, gamma) for some in _leave_group_out(workload)]

    def interval(figure: Callable[[LoadPoint], float | None]) -> Interval | None:
        return jackknife(figure(whole), [figure(part) for part in parts], len(workload.tokens_W), confidence)

    return LatencyAtLoad(
        whole.speculative.mean if whole.speculative else None,
        whole.plain.mean if whole.plain else None,
        interval(lambda point: point.speedup),
        interval(lambda point: point.speculative.p95 if point.speculative else None),
    )


def point_at_load(workload: Workload, step_costs: StepCosts, rate: float, cap: int, gamma: int) -> LoadPoint:
    """The figures of `serve` without their intervals."""
    return predict(workload, step_costs, chosen_lengths(workload, step_costs, cap, gamma), [rate]).points[0]


def jackknife(whole: float | None, without: list[float | None], prompts: int, confidence: float) -> Interval | None:
    """Interval of a figure from what it is without one group of prompts after the other (delete-a-group jackknife; Kott 2001). No
    bounds from fewer than two groups; None where the figure itself is."""
    found = np.array([one for one in without if one is not None], dtype=np.float64)
    if whole is None:
        return None
    if len(found) < 2 or len(found) < len(without):  # without some prompts not even stable
        return Interval(whole, -np.inf, np.inf, prompts)
    groups = len(found)
    error = np.sqrt((groups - 1) / groups * ((found - found.mean()) ** 2).sum())
    half = float(stdtrit(groups - 1, 0.5 + confidence / 2) * error)
    return Interval(whole, whole - half, whole + half, prompts)


def _leave_group_out(workload: Workload) -> list[Workload]:
    """Prompts that lie side by side are often alike, so every group has some from everywhere."""
    count = len(workload.tokens_W)
    groups = min(_GROUPS, count)
    return [_subset(workload, np.arange(count) % groups != group) for group in range(groups)] if groups > 1 else []


def _subset(workload: Workload, keep_W: NDArray[np.bool_]) -> Workload:
    return replace(
        workload,
        prompt_tokens_W=workload.prompt_tokens_W[keep_W],
        tokens_W=workload.tokens_W[keep_W],
        rounds_GW=workload.rounds_GW[:, keep_W],
        variance_GW=workload.variance_GW[:, keep_W],
    )
