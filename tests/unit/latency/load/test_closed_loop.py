"""Load tests that keep a number of requests open."""

import numpy as np
import pytest

from pipeline.latency.load.closed_loop import closed_loop, curves
from pipeline.latency.load.workload import constant_acceptance_workload
from tests.benchmarks.replica_plans import Known

COSTS = Known(0.02, 0.002, 1.0, 0.05, 8)
WORKLOAD = constant_acceptance_workload(0.7, 100, np.array([20, 60, 100, 200]), 2)


@pytest.mark.parametrize("concurrency", [1, 3, 8, 20])
@pytest.mark.parametrize("gamma", [0, 2])
def test_littles_law_holds(concurrency: int, gamma: int) -> None:
    """Requests = completed requests per second x latency, above the batch cap too."""
    found = closed_loop(WORKLOAD, COSTS, np.full(8, gamma), concurrency)

    assert pytest.approx(concurrency) == found.throughput / 95 * found.mean
    assert gamma == found.gamma
    assert found.batch <= min(concurrency, 8)
    assert found.mean < found.distribution.quantile(0.95)


def test_a_request_alone_takes_its_steps() -> None:
    """Without a draft: a step a token after the first, and the longest of four requests at p95."""
    found, step = closed_loop(WORKLOAD, COSTS, np.zeros(8, dtype=np.int64), 1), COSTS.seconds(1, 0)

    assert pytest.approx(94 * step) == found.mean
    assert pytest.approx(199 * step, rel=1e-3) == found.distribution.quantile(0.95)
    assert pytest.approx(1 / step) == found.each


def test_a_queue_adds_latency_and_no_throughput() -> None:
    full, queued = (closed_loop(WORKLOAD, COSTS, np.zeros(8, dtype=np.int64), count) for count in (8, 16))

    assert pytest.approx(full.throughput) == queued.throughput
    assert pytest.approx(2 * full.mean) == queued.mean
    assert queued.first_token > full.mean
    assert pytest.approx(full.token) == queued.token


def test_a_curve_goes_from_one_request_to_the_batch_cap() -> None:
    """Each of its points is a load test of its own."""
    found = curves(WORKLOAD, COSTS, 8, [0, 2])

    assert [0, 2] == list(found)
    assert (1, 8) == (found[2][0].concurrency, found[2][-1].concurrency)
    assert found[2] == [closed_loop(WORKLOAD, COSTS, np.full(8, 2), one.concurrency) for one in found[2]]
