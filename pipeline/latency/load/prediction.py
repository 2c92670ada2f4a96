"""Latency, throughput and speedup of a workload at given offered loads, with speculation and without. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import StepAccuracy
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.capacity import ServerCapacity
from pipeline.latency.load.closed_loop import ClosedLoop, closed_loop
from pipeline.latency.load.measured_losses import MeasuredLosses, measured_losses
from pipeline.latency.load.queueing import Latency, latency
from pipeline.latency.load.schedule import DraftOption, draft_lengths, request_seconds
from pipeline.latency.load.simulation import COUNTED, SimulatedReplica, simulate
from pipeline.latency.load.workload import Workload, make_traces, server_capacity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Offered load / capacity with speculation, if no rates are given.
DEFAULT_LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_BATCHES, _LEAST_OF_BATCHES = 20, 10  # of a standard error, and requests in each
_NORMAL_95 = 1.96


@dataclass(frozen=True, eq=False)
class SimulatedLatency:
    """Request latency in seconds, arrival to last token, over the steady state of a simulation."""

    seconds_R: Floats  # of each request, in order of arrival

    @property
    def mean(self) -> float:
        return float(self.seconds_R.mean())

    def quantile(self, quantile: float) -> float:
        """ValueError unless 0 <= quantile <= 1."""
        return float(np.quantile(self.seconds_R, quantile))

    def standard_error(self, quantile: float | None = None) -> float | None:
        """The standard error of the mean, or of a quantile, by batches of requests that follow each other: neighbours waited
        for the same others, so they are not independent. None for too few requests."""
        if len(self.seconds_R) < _LEAST_OF_BATCHES * _BATCHES:
            return None
        batches = np.array_split(self.seconds_R, _BATCHES)
        values = [float(batch.mean() if quantile is None else np.quantile(batch, quantile)) for batch in batches]
        return float(np.std(values, ddof=1) / _BATCHES**0.5)

    def requests_for(self, share: float, quantile: float | None = None) -> int | None:
        """Requests to simulate so that the figure is off by less than this share in 95 of 100 simulations; None if unknown."""
        error, value = self.standard_error(quantile), self.mean if quantile is None else self.quantile(quantile)
        return (
            None if error is None else ceil(len(self.seconds_R) / COUNTED * (_NORMAL_95 * error / (share * value)) ** 2)
        )


@dataclass(frozen=True)
class LoadPoint:
    """Results at one offered load; None where it exceeds capacity."""

    rate: float  # requests per second over all replicas
    plain: Latency | None
    speculative: Latency | None
    accuracy: StepAccuracy  # of the step times at its mean batches
    simulated: SimulatedLatency | None = None  # with speculation
    extrapolated: bool = False  # whether a mean batch is above the largest that was measured with its draft length

    @property
    def speedup(self) -> float | None:
        """Mean latency of plain decoding / with speculation; None if either is unstable."""
        return self.plain.mean / self.speculative.mean if self.plain and self.speculative else None


@dataclass(frozen=True)
class Prediction:
    """Results in order of load, and the capacity of both (requests per second over all replicas)."""

    points: list[LoadPoint]
    plain_limit: float
    speculative_limit: float
    inside: StepAccuracy  # of the step times inside what was measured
    plain_accuracy: StepAccuracy  # of the step times of a full batch, which the capacity is computed from
    accuracy: StepAccuracy  # the same with speculation
    plain_measured: float | None  # the largest throughput of the measurements, in requests per second; None if unknown
    measured: float | None  # the same with any draft length
    extrapolated: bool  # whether a full batch is above the largest that was measured with its draft length
    drafts: bool = True  # False: there is plain decoding only, and both results are of it

    @property
    def error_of_capacity(self) -> str:
        """For people, beside a capacity, which is reached with a full batch."""
        beyond = "extrapolated: no batch as large was measured; at least: " if self.extrapolated else ""
        return beyond + self.plain_accuracy.or_worse(self.accuracy).said


@dataclass(frozen=True)
class ClosedPoint:
    """Results of a load test at one concurrency."""

    loop: ClosedLoop
    measured: float | None  # tokens per second of the costs' own measurement there; None if there is none
    accuracy: StepAccuracy


def draft_option(name: str, workload: Workload, step_costs: StepCosts, cap: int) -> DraftOption:
    """A draft at batch sizes up to the cap, with what is known of its times. UsageError as for `predict`."""
    return DraftOption(
        name,
        workload.rounds_G,
        step_costs.steps(cap, round(workload.context), workload.max_gamma),
        step_costs.accuracy.with_tokens(workload.tokens_error),
        frozenset(gamma for gamma in range(workload.max_gamma + 1) if not step_costs.measured(gamma)),
        step_costs.measured_requests,
        _losses(workload, step_costs, cap),
        step_costs.acceptance_known,
        step_costs.plain,
        lambda gamma, batch: _accuracy_at(workload, step_costs, gamma, batch),
    )


def _losses(workload: Workload, step_costs: StepCosts, cap: int) -> MeasuredLosses | None:
    """Draft lengths that lost in the measurements of a server, with the tokens per step of the workload, or are not known to be
    faster than measured ones."""
    _check_acceptance(workload, step_costs)
    if not step_costs.accuracy.fitted and not step_costs.cells:
        return None
    rounds_G = None if workload.of_measurements else workload.rounds_G
    losses = measured_losses(step_costs.cells, rounds_G, workload.max_gamma, cap)
    losses.lost_GN[:] |= _uncertain(workload, step_costs, cap)
    if not step_costs.plain:
        losses.lost_GN[0] = True
        losses.lost_GN[1:] &= ~losses.lost_GN[1:].all(0)  # one is left
    return losses


def _uncertain(workload: Workload, step_costs: StepCosts, cap: int) -> Bools:
    """Draft lengths that were not measured, unless they are faster than each measured one by more than the errors explain:
    [gamma, n - 1]. Nothing is known below the shortest measured one, where the acceptance is unknown, and of one load."""
    measured_G = np.array([step_costs.measured(gamma) for gamma in range(workload.max_gamma + 1)])
    seconds_GN = request_seconds(workload.rounds_G, step_costs.steps(cap, round(workload.context), workload.max_gamma))
    certain_GN = np.zeros_like(seconds_GN, dtype=np.bool_)
    if step_costs.acceptance_known and step_costs.load is None:
        longest = max(workload.max_gamma, 1)
        least_N = [_accuracy_at(workload, step_costs, longest, n).certain_speedup for n in range(1, cap + 1)]
        certain_GN = seconds_GN * least_N < seconds_GN[measured_G].min(0)
    certain_GN[: int(measured_G.argmax())] = False
    uncertain_GN: Bools = ~measured_G[:, None] & ~certain_GN
    return uncertain_GN


def _accuracy_at(workload: Workload, step_costs: StepCosts, gamma: int, batch: float) -> StepAccuracy:
    """The accuracy of a step of this workload; plain decoding has no tokens to accept."""
    return step_costs.accuracy_at(gamma, batch).with_tokens(workload.tokens_error if gamma else 0.0)


def _check_acceptance(workload: Workload, step_costs: StepCosts) -> None:
    """UsageError for an acceptance beside costs that hold for their own only."""
    if not step_costs.acceptance_known and not workload.of_measurements:
        raise UsageError(
            "these step costs are of measurements whose acceptance is unknown, so they cannot be used with another acceptance; "
            "measure it beside the times (acceptance_length), or leave out the acceptance"
        )


def chosen_lengths(workload: Workload, step_costs: StepCosts, cap: int, gamma: int | None = None) -> Ints:
    """The draft length for each batch size up to the cap, or `gamma` for all of them."""
    if gamma is not None:
        return np.full(cap, gamma)
    losses = _losses(workload, step_costs, cap)
    step_GN = step_costs.steps(cap, round(workload.context), workload.max_gamma)
    return draft_lengths(workload.rounds_G, step_GN, losses.lost_GN if losses else None)


def predict(
    workload: Workload,
    step_costs: StepCosts,
    lengths_N: Ints,
    rates: Sequence[float],
    *,
    replicas: int = 1,
    simulated: int = 0,
    seed: int = 0,
) -> Prediction:
    """The prediction at `rates`, or at `DEFAULT_LOADS` of capacity if empty. The formula assigns requests to replicas at
    random; the simulation of `simulated` requests (0: none) assigns each to the replica with the fewest requests."""
    _check_acceptance(workload, step_costs)
    plain, speculative = (
        server_capacity(workload, step_costs, lengths_N * speculating) for speculating in (np.int64(0), np.int64(1))
    )
    speculative_limit = speculative.stability_limit * replicas
    step_GN = step_costs.steps(len(lengths_N), round(workload.context), workload.max_gamma)
    replica = SimulatedReplica(
        step_GN, step_costs.prefills, lambda count: int(lengths_N[count - 1]), step_costs.first_steps
    )
    points = []
    for rate in sorted(rates or [share * speculative_limit for share in DEFAULT_LOADS]):
        with_drafts = latency_at(rate / replicas, speculative, workload, lengths_N, step_costs.first_steps)
        simulation = None
        if (
            simulated and with_drafts
        ):  # with the acceptance of the draft length at the mean batch size, if it is not plain decoding
            traces = make_traces(workload, max(1, length_at(lengths_N, with_drafts.batch)))
            seconds_R = simulate(replica, traces, rate, simulated, seed, replicas).steady_state()
            simulation = SimulatedLatency(seconds_R + speculative.before_decoding)
        without = latency_at(rate / replicas, plain, workload, lengths_N * 0, step_costs.first_steps)
        at = [(0, without.batch)] if without else []
        at += [(length_at(lengths_N, with_drafts.batch), with_drafts.batch)] if with_drafts else []
        accuracy = step_costs.accuracy.with_tokens(workload.tokens_error)
        for gamma, batch in at:
            accuracy = accuracy.or_worse(step_costs.accuracy_at(gamma, batch).with_tokens(workload.tokens_error))
        extrapolated = any(beyond_measured(step_costs, gamma, batch) for gamma, batch in at)
        points.append(LoadPoint(rate, without, with_drafts, accuracy, simulation, extrapolated))
    cap = len(lengths_N)
    return Prediction(
        points,
        plain.stability_limit * replicas,
        speculative_limit,
        step_costs.accuracy.with_tokens(workload.tokens_error),
        _accuracy_at(workload, step_costs, 0, cap),
        step_costs.accuracy_at(int(lengths_N[-1]), cap).with_tokens(workload.tokens_error),
        *_measured(workload, step_costs, replicas),
        any(beyond_measured(step_costs, int(length), len(lengths_N)) for length in (0, lengths_N[-1])),
        workload.max_gamma > 0,
    )


def predict_closed(
    workload: Workload, step_costs: StepCosts, lengths_N: Ints, concurrencies: Sequence[int]
) -> list[ClosedPoint]:
    """Results at each concurrency with plain decoding, where it was measured, and with speculation, where that is something
    else."""
    _check_acceptance(workload, step_costs)
    points = []
    for concurrency in sorted(concurrencies):
        loops = [closed_loop(workload, step_costs, lengths_N, concurrency)]
        if step_costs.plain and loops[0].gamma:
            loops.insert(0, closed_loop(workload, step_costs, lengths_N * 0, concurrency))
        for loop in loops:
            cells = [
                cell for cell in step_costs.cells if cell.gamma == loop.gamma and round(cell.requests) == concurrency
            ]
            rates = [cell.batch * cell.tokens_per_step / cell.step_seconds for cell in cells]
            accuracy = _accuracy_at(workload, step_costs, loop.gamma, concurrency)
            points.append(ClosedPoint(loop, float(np.mean(rates)) if rates else None, accuracy))
    return points


def beyond_measured(step_costs: StepCosts, gamma: int, batch: float) -> bool:
    """Whether a draft length was not measured at as large a batch."""
    _, largest = step_costs.measured_requests.get(gamma, (1, step_costs.max_requests))
    return batch > largest


def _measured(workload: Workload, step_costs: StepCosts, replicas: int) -> tuple[float | None, float | None]:
    """The largest measured throughput of plain decoding and of any draft length, as requests per second of this workload."""
    if step_costs.max_throughput is None:
        return None, None
    plain, of_all = (each * replicas / float(workload.tokens_W.mean()) for each in step_costs.max_throughput)
    return plain, of_all


def latency_at(
    rate: float, capacity: ServerCapacity, workload: Workload, lengths_N: Ints, first_steps: int
) -> Latency | None:
    """Request sizes are those at the draft length of the mean batch size."""
    first = latency(rate, capacity, workload.sizes(int(lengths_N[0]), first_steps))
    if first is None:
        return None
    if (length := length_at(lengths_N, first.batch)) == lengths_N[0]:
        return first
    return latency(rate, capacity, workload.sizes(length, first_steps))


def length_at(lengths_N: Ints, batch: float) -> int:
    """The draft length at a mean batch size."""
    return int(lengths_N[min(max(round(batch), 1), len(lengths_N)) - 1])
