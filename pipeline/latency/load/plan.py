"""Replicas that serve a request rate within a percentile of the latency, with and without a draft. Pure.

The least number of replicas is searched with step times as they are, and with step times as much shorter and longer as the
errors of costs and acceptance allow: their interval. The error is that of each batch size, so it is the error at the edge for
batches at or beyond the lightest and heaviest measured load.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.accuracy import StepAccuracy
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.capacity import ServerCapacity
from pipeline.latency.load.closed_loop import alone
from pipeline.latency.load.prediction import chosen_lengths, latency_at, length_at
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.workload import Workload, measured_lengths, server_capacity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCHEDULE = "schedule"
_ALONE = 1e-3  # of the capacity: a load at which a request is alone
_OF_95 = 2.0  # half a 95% interval / a mean absolute error, or a standard error
_MORE_DATA = 4  # times as many measurements, which halve an error


@dataclass(frozen=True)
class Goal:
    """A share `quantile` of the requests, which arrive at `rate` per second in all, takes at most `seconds`."""

    rate: float
    quantile: float
    seconds: float


@dataclass(frozen=True)
class Errors:
    """Half-widths of the intervals, as shares; infinite if unknown."""

    steps_N: Floats  # of step times by batch size
    tokens: float  # of tokens per step

    @property
    def known(self) -> bool:
        return isfinite(self.tokens) and bool(np.isfinite(self.steps_N).all())

    @property
    def factor_N(self) -> Floats:
        """The factor of the time to decode, by batch size: the two errors are independent."""
        factor_N: Floats = 1 + np.hypot(self.steps_N, self.tokens)
        return factor_N


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to serve the rate. None where there is no number of replicas, and no latency above the capacity."""

    name: str  # of the draft length: "none", a number, or "schedule"
    lengths_N: Ints
    alone: float  # the percentile of a request that is alone, in seconds
    replicas: int | None  # the least number; None if a request that is alone takes too long
    least: int | None  # of the interval, with all errors in favour; None as above, and if an error is unknown
    most: int | None  # with all errors against; None as `least`
    seconds: float | None  # the percentile with `replicas`
    fewer: float | None  # with one replica fewer; None above the capacity, and for one replica
    load: float | None  # offered load / capacity, with `replicas`
    batch: float | None  # mean number of requests in the batch
    measured: bool  # whether such a batch was measured with this draft length
    accuracy: StepAccuracy  # of the step times there
    by_throughput: int | None  # replicas by the largest throughput of the measurements; None if unknown


@dataclass(frozen=True)
class NextMeasurement:
    """A measurement, and the interval of the cheapest option with the error that it would leave."""

    what: str
    least: int | None
    most: int | None


@dataclass(frozen=True)
class ReplicaPlan:
    """Options, the cheapest first."""

    goal: Goal
    options: list[Option]

    @property
    def best(self) -> Option | None:
        return self.options[0] if self.options[0].replicas is not None else None

    @property
    def no_choice(self) -> list[Option]:
        """The best option and others that need no more than it may need itself."""
        best = self.best
        enough = [
            option for option in self.options if best and option.replicas and option.replicas <= (best.most or inf)
        ]
        return enough if len(enough) > 1 else []


def make_plan(workload: Workload, step_costs: StepCosts, cap: int, goal: Goal) -> ReplicaPlan:
    """Plain decoding, each measured draft length, and the schedule by batch size, where these were measured."""
    lengths = {
        "none" if gamma == 0 else str(gamma): np.full(cap, gamma) for gamma in measured_lengths(workload, step_costs)
    }
    schedule_N = chosen_lengths(workload, step_costs, cap)
    if len(set(schedule_N.tolist())) > 1:
        lengths[SCHEDULE] = schedule_N
    options = [_Server(workload, step_costs, lengths_N, goal).option(name) for name, lengths_N in lengths.items()]
    return ReplicaPlan(
        goal,
        sorted(
            options, key=lambda option: (option.replicas or inf, option.least or inf, option.seconds or option.alone)
        ),
    )


def next_measurement(workload: Workload, step_costs: StepCosts, plan: ReplicaPlan) -> NextMeasurement | None:
    """What would narrow the interval of the first option most; None if it is one number already, or no number with all errors in
    favour."""
    first = plan.options[0]
    return _Server(workload, step_costs, first.lengths_N, plan.goal).next_measurement(first)


@dataclass(frozen=True)
class _Server:
    """One replica with its draft lengths."""

    workload: Workload
    step_costs: StepCosts
    lengths_N: Ints
    goal: Goal

    def option(self, name: str) -> Option:
        capacity, errors = self._capacity, self.errors
        replicas = self.least_replicas()
        least, most = self.interval(errors, replicas)
        at = None if replicas is None else self._at(capacity, replicas)
        fewer = self._at(capacity, replicas - 1) if replicas and replicas > 1 else None
        quantile, batch = self.goal.quantile, at.batch if at else 1.0
        gamma = length_at(self.lengths_N, batch)
        low, high = self.step_costs.measured_requests.get(gamma, (1, self.step_costs.max_requests))
        return Option(
            name=name,
            lengths_N=self.lengths_N,
            alone=self._alone(capacity),
            replicas=replicas,
            least=least,
            most=most,
            seconds=at.quantile(quantile) if at else None,
            fewer=fewer.quantile(quantile) if fewer else None,
            load=None if replicas is None else self.goal.rate / replicas / capacity.stability_limit,
            batch=at.batch if at else None,
            measured=(low == 1 or low <= batch) and batch <= high,
            accuracy=self.step_costs.accuracy_at(gamma, batch).with_tokens(self._tokens_error(gamma) / _OF_95),
            by_throughput=self._by_throughput(),
        )

    def interval(self, errors: Errors, near: int | None) -> tuple[int | None, int | None]:
        """The least number of replicas with all errors in favour, and against. `near`: the number without errors."""
        if not errors.known:
            return None, None
        return self.least_replicas(1 / errors.factor_N, near), self.least_replicas(errors.factor_N, near)

    def next_measurement(self, option: Option) -> NextMeasurement | None:
        """The one after which the interval is narrowest, by the error that such a measurement leaves elsewhere."""
        if self.errors.known and (option.least is None or option.least == option.most):
            return None
        candidates = [
            NextMeasurement(what, *self.interval(errors, option.replicas)) for what, errors in self._candidates(option)
        ]
        return min(
            candidates,
            key=lambda candidate: inf if candidate.most is None else candidate.most - (candidate.least or 0),
            default=None,
        )

    @property
    def errors(self) -> Errors:
        return Errors(
            np.array([self._step_error(int(gamma), n) for n, gamma in enumerate(self.lengths_N, 1)]),
            max(self._tokens_error(int(gamma)) for gamma in set(self.lengths_N.tolist())),
        )

    def _candidates(self, option: Option) -> list[tuple[str, Errors]]:
        errors, inside = self.errors, self.step_costs.accuracy
        count_N = np.arange(1, len(self.lengths_N) + 1)
        gamma = length_at(self.lengths_N, option.batch or 1.0)
        low, high = self.step_costs.measured_requests.get(gamma, (1, self.step_costs.max_requests))
        known = _OF_95 * inside.left_out if inside.left_out is not None else inf
        candidates: list[tuple[str, Errors]] = []
        with_draft = f"draft length {gamma}" if gamma else "plain decoding"
        if inside.fitted and isfinite(known):
            heavier = f"{with_draft} at a heavier load, {2 * high} requests at once"
            candidates.append((heavier, replace(errors, steps_N=np.where(count_N >= high, known, errors.steps_N))))
            if low > 1:
                lighter = f"{with_draft} at a lighter load, 1 request at a time"
                candidates.append((lighter, replace(errors, steps_N=np.where(count_N <= low, known, errors.steps_N))))
            more = f"{with_draft} at more loads from {low} to {high} requests, {_MORE_DATA} times as many"
            candidates.append((more, replace(errors, steps_N=errors.steps_N / _MORE_DATA**0.5)))
        elif inside.fitted:
            more = f"{with_draft} at more loads: the error of the step times is unknown"
            candidates.append((more, errors))
        if errors.tokens:
            tokens = f"the acceptance of {_MORE_DATA} times as many prompts"
            candidates.append((tokens, replace(errors, tokens=errors.tokens / _MORE_DATA**0.5)))
        return candidates

    def _step_error(self, gamma: int, batch: float) -> float:
        accuracy = self.step_costs.accuracy_at(gamma, batch)
        return 0.0 if not accuracy.fitted else inf if accuracy.left_out is None else _OF_95 * accuracy.left_out

    def _tokens_error(self, gamma: int) -> float:
        """The error of the tokens per step: of those of the measurements, or of the mean over the requests of an examination."""
        if gamma == 0:
            return 0.0
        if self.workload.of_measurements:
            return _OF_95 * self.workload.tokens_error
        return _OF_95 * _standard_error(self.workload, gamma)

    def least_replicas(self, slower_N: Floats | None = None, near: int | None = None) -> int | None:
        """The least number of replicas with times that are longer by this factor. None if a request that is alone takes too
        long. More replicas never make the percentile longer, so the number is bracketed from `near`, or from the capacity up,
        and halved."""
        capacity = self._capacity if slower_N is None else self._slower(slower_N)
        if self._alone(capacity) > self.goal.seconds:
            return None

        @cache
        def enough(replicas: int) -> bool:
            # A request that is alone is fast enough, so a load as light needs no search.
            light = self.goal.rate / replicas <= _ALONE * capacity.stability_limit
            latency = None if light else self._at(capacity, replicas)
            return light or (latency is not None and latency.quantile(self.goal.quantile) <= self.goal.seconds)

        low, step = int(self.goal.rate / capacity.stability_limit), 1  # too few
        high = max(near or 0, low + 1)
        while not enough(high):
            low, high, step = high, high + step, 2 * step
        step = 1
        while near and low < high - step and enough(high - step):
            high, step = high - step, 2 * step
        low = max(low, high - step) if near else low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def _at(self, capacity: ServerCapacity, replicas: int) -> Latency | None:
        """The latency of one replica; None above its capacity."""
        rate = self.goal.rate / replicas
        return latency_at(rate, capacity, self.workload, self.lengths_N, self.step_costs.first_steps)

    def _alone(self, capacity: ServerCapacity) -> float:
        """The percentile of a request that is alone."""
        return alone(self.workload, capacity, self.lengths_N, self.step_costs.first_steps).quantile(self.goal.quantile)

    @property
    def _capacity(self) -> ServerCapacity:
        return server_capacity(self.workload, self.step_costs, self.lengths_N)

    def _slower(self, factor_N: Floats) -> ServerCapacity:
        capacity = self._capacity
        return replace(capacity, service_N=capacity.service_N * factor_N, step_N=capacity.step_N * factor_N)

    def _by_throughput(self) -> int | None:
        """Replicas by the largest throughput that was measured with these draft lengths."""
        if self.step_costs.max_throughput is None:
            return None
        plain, of_all = self.step_costs.max_throughput
        used = set(self.lengths_N.tolist())
        cells = [cell for cell in self.step_costs.cells if cell.gamma in used]
        most = max((cell.batch * cell.tokens_per_step / cell.step_seconds for cell in cells), default=of_all)
        most = plain if used == {0} else min(most, of_all)
        return ceil(self.goal.rate * float(self.workload.tokens_W.mean()) / most) if most else None


def _standard_error(workload: Workload, gamma: int) -> float:
    """The standard error of the tokens per step over independent units (conversations), as a share: a ratio of sums. 0 for one
    acceptance rate."""
    unit_W = np.arange(len(workload.tokens_W)) if workload.unit_W is None else workload.unit_W
    plain_U, rounds_U = (np.bincount(unit_W, of_W) for of_W in (workload.rounds_GW[0], workload.rounds_GW[gamma]))
    count = len(plain_U)
    if (workload.draft_digest is None and workload.unit_W is None) or count < 2:
        return 0.0
    rest_U = rounds_U - plain_U * (rounds_U.sum() / plain_U.sum())
    return float(np.sqrt(count / (count - 1) * (rest_U**2).sum()) / rounds_U.sum())
