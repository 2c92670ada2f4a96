"""Latency under load at the edges of the model. Each test notices a behaviour that was broken on purpose."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.latency.load.capacity import RequestSizes, ServerCapacity
from pipeline.latency.load.prediction import predict
from pipeline.latency.load.queueing import latency
from pipeline.latency.load.schedule import batch_ranges, draft_lengths
from pipeline.latency.load.simulation import SimulatedRequests, simulate
from pipeline.latency.load.waiting import waiting_time
from pipeline.latency.load.workload import (
    Workload,
    constant_acceptance_workload,
    measured_acceptance_workload,
    server_capacity,
)
from tests.unit.latency.load.test_prediction import step_costs_of
from tests.unit.latency.load.test_queueing import _linear, _stable
from tests.unit.latency.load.test_simulation import _replica, _traces


def test_an_arrival_waits_for_the_running_step_or_the_prefills_before_it() -> None:
    """Half a step, or all of it for one that arrives during a prefill."""
    found = _stable(10.0, _linear(0.02, 0.0, steps=50, cap=400, prefill=0.01))

    assert pytest.approx((0.9 / 2 + 0.1) * 0.02, rel=1e-3) == found.admission


def test_prefills_keep_a_server_busy() -> None:
    """Prefills keep a server busy."""
    assert pytest.approx(0.7, rel=0.02) == _stable(0.7 / 1.5, _linear(1.0, 0.0, steps=1, cap=1, prefill=0.5)).busy


def test_identical_requests_wait_as_in_m_d_c() -> None:
    """Against a simulation of 4 servers at 60%: the probability of waiting, its mean and its 95th percentile. Seeded."""
    rate, cap = 0.6 * 4, 4
    free, waits, now = [0.0] * cap, [], 0.0
    for gap in np.random.default_rng(0).exponential(1 / rate, 100_000).tolist():
        now += gap
        first = min(free)
        waits.append(max(0.0, first - now))
        free[free.index(first)] = max(first, now) + 1.0
    waited = np.array([one for one in waits if one > 0])
    full = rate**cap / 24 / (1 - rate / cap)
    erlang = full / (sum(rate**k / f for k, f in enumerate((1, 1, 2, 6))) + full)
    found = waiting_time(rate, cap, 1 / cap, 0.0)

    assert pytest.approx(len(waited) / len(waits) / erlang, rel=0.03) == found.probability
    assert pytest.approx(waited.mean(), rel=0.05) == found.mean
    assert pytest.approx(np.quantile(waited, 0.95), rel=0.07) == np.quantile(found.seconds_K, 0.95)
    assert pytest.approx(np.mean(waits), rel=0.03) == _stable(rate, _linear(1.0, 0.0, steps=1, cap=cap)).queue


def test_waiting_times_lie_between_identical_and_exponential_sizes() -> None:
    """Waiting times lie between identical and exponential sizes."""
    identical, half, exponential, wide = (waiting_time(3.4, 4, 0.25, cv) for cv in (0.0, 0.5, 1.0, 2.0))

    assert identical.probability < 0.99
    assert pytest.approx((identical.probability + 1) / 2) == half.probability
    assert pytest.approx((identical.mean + exponential.mean) / 2) == half.mean
    assert pytest.approx(0.25 / (1 - 0.85)) == exponential.mean
    assert (1.0, pytest.approx(1.5 * exponential.mean)) == (wide.probability, wide.mean)


def test_quantiles_of_waiting_times_have_the_variance_of_all() -> None:
    """Quantiles of waiting times have the variance of all."""
    found = waiting_time(3.4, 4, 0.25, 1.0)

    assert pytest.approx(found.mean**2, rel=0.05) == found.seconds_K.var() + found.variance_K.mean()
    assert found.variance_K.mean() > 0


def test_request_sizes_are_those_at_the_mean_batch() -> None:
    """Drafts at one request only: at a high load most requests are decoded without them."""
    costs, lengths_N = step_costs_of(0.0005), np.array([3] + [0] * 15)
    mixed = constant_acceptance_workload(0.7, 100, np.array([40, 360]), 3)
    mixed = replace(mixed, variance_GW=mixed.variance_GW * 1.0)
    capacity = server_capacity(mixed, costs, lengths_N)
    rate = 0.8 * capacity.stability_limit
    (point,) = predict(mixed, costs, lengths_N, [rate]).points

    assert latency(rate, capacity, mixed.sizes(0)) == point.speculative
    assert latency(rate, capacity, mixed.sizes(3)) != point.speculative


def test_p95_of_a_simulation_is_that_of_the_longest() -> None:
    """7% of the requests are nine times as long as the others."""
    workload = constant_acceptance_workload(0.7, 100, np.array([40] * 93 + [360] * 7), 3)
    (point,) = predict(workload, step_costs_of(0.0005), np.full(16, 3), [0.1], simulated=2000).points

    assert pytest.approx(point.speculative.quantile(0.95), rel=0.1) == point.simulated.quantile(0.95)


def test_a_simulation_has_the_acceptance_of_its_draft_length() -> None:
    """Three draft tokens give 2 tokens a step, one gives 1.7: a rate per token of 0.7 would give 2.5."""
    workload = measured_acceptance_workload({1: 1.7, 3: 2.0}, 100, 200, 3)
    (point,) = predict(workload, step_costs_of(0.0005), np.full(16, 3), [0.5], simulated=1000).points

    assert pytest.approx(point.speculative.mean, rel=0.03) == point.simulated.mean


def test_sizes_have_the_step_of_the_first_token() -> None:
    """Sizes have the step of the first token."""
    workload = Workload(np.array([1, 1]), np.array([9, 5]), np.array([[8.0, 4.0]]), np.array([[2.0, 1.0]]))
    found = workload.sizes(0, 1)

    np.testing.assert_allclose(found.mean_W, [9 / 7, 5 / 7])
    np.testing.assert_allclose(found.variance_W, [2 / 49, 1 / 49])


def test_shorter_drafts_than_were_measured_accept_less() -> None:
    """Down to one token per step without drafts; all are accepted where every step gave the most it can."""
    found = measured_acceptance_workload({0: 1.0, 3: 2.5}, 100, 1000, 3)

    assert pytest.approx([1.692, 2.170, 2.5], rel=0.01) == (1000 / found.rounds_G[1:]).tolist()
    assert pytest.approx(2.0, rel=0.01) == 1000 / measured_acceptance_workload({1: 2.0}, 100, 1000, 1).rounds_G[1]


def test_the_step_of_the_first_token_has_no_drafts() -> None:
    """Nine tokens: one in the first step, then three per step."""

    replica = replace(_replica([1.0], gamma=2), first_steps=1)
    served = simulate(replica, _traces([9], 1.0), rate=1e-6, requests=2, seed=0)

    np.testing.assert_allclose(served.finished_R - served.arrived_R, 1 + 3, rtol=1e-6)


def test_the_steady_state_is_without_the_first_and_the_last_tenth() -> None:
    """The steady state is without the first and the last tenth."""

    zero_R = np.zeros(20)
    found = SimulatedRequests(zero_R.astype(np.int64), zero_R, zero_R, np.arange(20.0)).steady_state()

    assert list(range(2, 18)) == found.tolist()


@pytest.mark.parametrize(("steps", "first"), [(0.4, 0), (0.6, 1), (1.6, 1)])
def test_half_a_step_is_taken_for_one(steps: float, first: int) -> None:
    """Half a step is taken for one."""
    costs = step_costs_of(0.0005)

    assert first == replace(costs, first_token=steps * float(costs.step_seconds(1, 0))).first_steps


def test_no_more_is_lost_than_eight_stretches_ask_for() -> None:
    """Ten stretches differ by 1.5%: they are joined. Those before and after differ by 30%: they are not."""
    step_GN = np.array([[1.0, 1.0] + [1.0, 1.015] * 5 + [1.3] * 2, [1.3, 1.3] + [1.015, 1.0] * 5 + [1.0] * 2])
    found = draft_lengths(np.ones(2), step_GN)

    assert [0, 0, 1, 1] == [*found[:2], *found[-2:]]
    assert step_GN[found, np.arange(14)].max() < 1.02
    ten_GN = np.array([[1.0, 1.05] * 5, [1.05, 1.0] * 5])
    assert len(batch_ranges(draft_lengths(np.ones(2), ten_GN))) <= 8


def test_requests_that_waited_decode_in_a_full_batch() -> None:
    """Steps of a full batch take twice those of one request: p95 of those that waited, within 4%."""

    step_N = np.array([0.01, 0.014, 0.018, 0.022])
    capacity = ServerCapacity(100 * step_N, step_N, 0.0)
    rate = 0.6 * capacity.stability_limit
    found = latency(rate, capacity, RequestSizes(np.ones(1), np.zeros(1)))
    seen = simulate(_replica(step_N.tolist()), _traces([101]), rate, 12_000, seed=1).steady_state()

    assert pytest.approx(np.quantile(seen, 0.95), rel=0.04) == found.quantile(0.95)
