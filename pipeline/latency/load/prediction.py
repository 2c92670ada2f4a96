"""A workload on a machine at given loads, with speculation and without. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.step_costs import Machine
from pipeline.latency.load.capacity import ServerCapacity
from pipeline.latency.load.queueing import Latency, latency
from pipeline.latency.load.schedule import best_lengths
from pipeline.latency.load.simulation import Replica, simulate
from pipeline.latency.load.workload import Workload, server, traces

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHARES = (
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
)  # of the stability limit with speculation, where no rates are given


@dataclass(frozen=True)
class Simulated:
    """Seconds of a request from arrival to last token, over a simulation's settled requests."""

    mean: float
    p95: float
    requests: int


@dataclass(frozen=True)
class Point:
    """One load; None where it is not stable."""

    rate: float  # requests a second, over all replicas
    plain: Latency | None
    drafted: Latency | None
    simulated: Simulated | None = None  # with speculation

    @property
    def speedup(self) -> float | None:
        """Of the mean latency; None where either is not stable."""
        return self.plain.mean / self.drafted.mean if self.plain and self.drafted else None


@dataclass(frozen=True)
class Prediction:
    """Loads in rising order, and from which on each way is not stable (requests a second, over all replicas)."""

    points: list[Point]
    plain_limit: float
    drafted_limit: float


def chosen_lengths(workload: Workload, machine: Machine, cap: int, gamma: int | None = None) -> Ints:
    """The best draft length for every number of requests up to the batch cap, or `gamma` for all of them."""
    if gamma is not None:
        return np.full(cap, gamma)
    return best_lengths(workload.rounds_G, machine.steps(cap, round(workload.context), workload.most_gamma))


def predict(
    workload: Workload,
    machine: Machine,
    lengths_N: Ints,
    rates: Sequence[float],
    replicas: int = 1,
    simulated: int = 0,
    seed: int = 0,
) -> Prediction:
    """At `rates`, or at shares of the limit where there are none. Requests go to replicas at random in the formula, to the one
    with the fewest in the simulation of `simulated` requests (0: none)."""
    plain, drafted = (server(workload, machine, lengths_N * speculating) for speculating in (np.int64(0), np.int64(1)))
    limit = drafted.stability_limit * replicas
    points = []
    for rate in sorted(rates or [share * limit for share in SHARES]):
        found = _latency(rate / replicas, drafted, workload, lengths_N)
        trial = (
            _simulate(rate, workload, machine, lengths_N, replicas, simulated, seed) if simulated and found else None
        )
        points.append(Point(rate, _latency(rate / replicas, plain, workload, lengths_N * 0), found, trial))
    return Prediction(points, plain.stability_limit * replicas, limit)


def _latency(rate: float, server: ServerCapacity, workload: Workload, lengths_N: Ints) -> Latency | None:
    """Requests are as unequal as at the draft length of the batch that they meet on the average."""
    alone = latency(rate, server, workload.sizes(int(lengths_N[0])))
    if alone is None:
        return None
    met = min(max(round(alone.batch), 1), len(lengths_N))
    if lengths_N[met - 1] == lengths_N[0]:
        return alone
    return latency(rate, server, workload.sizes(int(lengths_N[met - 1])))


def _simulate(
    rate: float, workload: Workload, machine: Machine, lengths_N: Ints, replicas: int, requests: int, seed: int
) -> Simulated:
    step_GN = machine.steps(len(lengths_N), round(workload.context), workload.most_gamma)
    replica = Replica(step_GN, machine.prefills, lambda count: int(lengths_N[count - 1]))
    seconds_R = simulate(
        replica, traces(workload, max(1, int(np.median(lengths_N)))), rate, requests, seed, replicas
    ).settled()
    return Simulated(float(seconds_R.mean()), float(np.quantile(seconds_R, 0.95)), len(seconds_R))
