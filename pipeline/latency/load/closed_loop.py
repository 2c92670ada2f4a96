"""Latency and throughput of a load test that keeps a number of requests open (a closed loop), in closed form. Pure.

Each of C clients sends its next request when the last one ends, so the batch is always about as large, and there is no queue
unless C exceeds the batch cap. While a request decodes, each other client sends one, whose prefill delays it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.capacity import ServerCapacity
from pipeline.latency.load.latency_distribution import LatencyDistribution, normal_mixture
from pipeline.latency.load.workload import Ints, Workload, server_capacity

_ITERATIONS = 50  # of the batch, which settles after a few


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """What a load test at one concurrency reports, in seconds and tokens per second."""

    concurrency: int
    gamma: int  # the draft length at its batch
    batch: float  # mean number of requests that decode
    mean: float  # latency, from sending to the last token
    first_token: float  # mean TTFT
    token: float  # mean time per output token after the first (TPOT)
    throughput: float  # output tokens of all requests
    distribution: LatencyDistribution = field(compare=False, repr=False)

    @property
    def each(self) -> float:
        """Output tokens per second of one user, after the first token."""
        return 1 / self.token


def closed_loop(workload: Workload, step_costs: StepCosts, lengths_N: Ints, concurrency: int) -> ClosedLoop:
    """The figures at a draft length for each batch size up to the batch cap, `len(lengths_N)`."""
    return _closed_loop(
        workload, server_capacity(workload, step_costs, lengths_N), lengths_N, step_costs.first_steps, concurrency
    )


def curves(workload: Workload, step_costs: StepCosts, cap: int, lengths: Iterable[int]) -> dict[int, list[ClosedLoop]]:
    """The curve of each draft length, at loads from one request to the batch cap: what one user gets of what the replica
    gives."""
    loads = np.unique(np.geomspace(1, cap, 16).round().astype(int)).tolist()
    loops: dict[int, list[ClosedLoop]] = {}
    for gamma in lengths:
        lengths_N = np.full(cap, gamma)
        capacity = server_capacity(workload, step_costs, lengths_N)
        loops[gamma] = [_closed_loop(workload, capacity, lengths_N, step_costs.first_steps, load) for load in loads]
    return loops


def alone(workload: Workload, capacity: ServerCapacity, lengths_N: Ints, first_steps: int) -> LatencyDistribution:
    """The latency of a request that no other delays."""
    return _closed_loop(workload, capacity, lengths_N, first_steps, 1).distribution


def _closed_loop(
    workload: Workload, capacity: ServerCapacity, lengths_N: Ints, first_steps: int, concurrency: int
) -> ClosedLoop:
    open_, count_N = min(concurrency, capacity.cap), np.arange(1, capacity.cap + 1)
    batch = float(open_)
    for _ in range(_ITERATIONS):
        step, service = (float(np.interp(batch, count_N, of_N)) for of_N in (capacity.step_N, capacity.service_N))
        waits = step if open_ > 1 else 0.0  # for the step that runs when it is sent
        start = waits + capacity.before_decoding + capacity.prefill
        decoding = service + (open_ - 1) * capacity.prefill
        batch = max(1.0, open_ * decoding / (start + decoding))
    completion = (start + decoding) / open_  # seconds between two
    queued = concurrency - open_
    gamma = int(lengths_N[min(round(batch), capacity.cap) - 1])
    sizes = workload.sizes(gamma, first_steps)
    variance_W = sizes.variance_W * service**2 + sizes.mean_W * (open_ - 1) * capacity.prefill**2
    variance_W = variance_W + queued * completion**2 * sizes.squared_cv
    first = queued * completion + start + first_steps * step
    mean, tokens = queued * completion + start + decoding, float(workload.tokens_W.mean())
    return ClosedLoop(
        concurrency=concurrency,
        gamma=gamma,
        batch=batch,
        mean=mean,
        first_token=first,
        token=(mean - first) / max(tokens - 1, 1),
        throughput=tokens / completion,
        distribution=normal_mixture(queued * completion + start + sizes.mean_W * decoding, np.sqrt(variance_W)),
    )
