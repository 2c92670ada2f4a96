"""Latency under load: the closed form agrees with textbook queues in special cases."""

import numpy as np
import pytest

from pipeline.latency.load.capacity import RequestSizes, ServerCapacity
from pipeline.latency.load.queueing import Latency, latency

EQUAL = RequestSizes(np.ones(1), np.zeros(1))


def _linear(fixed: float, each: float, steps: float, cap: int, prefill: float = 0.0) -> ServerCapacity:
    step_N = fixed + each * np.arange(1, cap + 1)
    return ServerCapacity(steps * step_N, step_N, prefill)


def _stable(rate: float, capacity: ServerCapacity, sizes: RequestSizes = EQUAL) -> Latency:
    found = latency(rate, capacity, sizes)
    assert found is not None
    return found


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_linear_step_times_give_the_formula_of_kong(load: float) -> None:
    """L = S (a + b) / (1 - rate S b), with a batch cap that is never reached."""
    capacity = _linear(0.02, 0.001, steps=50, cap=2000)
    rate = load / (50 * 0.001)

    assert pytest.approx(50 * 0.021 / (1 - load), rel=1e-6) == _stable(rate, capacity).service


def test_a_step_time_independent_of_the_batch_gives_an_infinite_server_queue() -> None:
    """M/G/infinity: the mean batch is rate times service time, by Little's law."""
    found = _stable(30.0, _linear(0.02, 0.0, steps=50, cap=400))

    assert pytest.approx(1.0) == found.service
    assert pytest.approx(30.0) == found.batch
    assert pytest.approx(0.01, rel=1e-3) == found.admission


@pytest.mark.parametrize("load", [0.7, 0.9999])
def test_a_batch_cap_of_one_gives_pollaczek_khinchine(load: float) -> None:
    """rate E[S^2] / 2 (1 - load), for request sizes that vary by length and by acceptance."""
    sizes = RequestSizes(np.array([0.5, 1.5]), np.array([0.1, 0.3]))
    second_moment = (0.5**2 + 1.5**2 + 0.1 + 0.3) / 2

    found = _stable(load, _linear(1.0, 0.0, steps=1, cap=1), sizes)

    assert pytest.approx(load * second_moment / (2 * (1 - load))) == found.queue
    assert pytest.approx(1.0) == found.service
    assert pytest.approx(load) == found.busy


def test_step_times_proportional_to_the_batch_give_processor_sharing() -> None:
    """M/G/1-PS: the sojourn time is size / (1 - load)."""
    found = _stable(0.5, _linear(0.0, 1.0, steps=1, cap=300))

    assert pytest.approx(2.0) == found.service


def test_arrivals_during_a_prefill_start_together() -> None:
    """A request is in a busy period of 1 / 0.9^2 prefills on average (Borel); the stability limit includes prefills."""
    plain, slowed = _linear(0.02, 0.001, 50, 2000), _linear(0.02, 0.001, 50, 2000, prefill=0.01)

    assert pytest.approx(0.01 / 0.9**2) == _stable(10.0, slowed).prefill
    assert pytest.approx(1 / (50 * 0.001 * 2020 / 2000 + 0.01)) == slowed.stability_limit
    assert slowed.stability_limit < plain.stability_limit


@pytest.mark.parametrize(
    "sizes", [EQUAL, RequestSizes(np.array([0.5, 1.5]), np.array([0.1, 0.3])), RequestSizes(np.ones(1), np.ones(1))]
)
def test_batch_arrivals_give_processor_sharing_with_batches(sizes: RequestSizes) -> None:
    """With b other requests per batch: (1 + b / (1 + cv^2)) / (1 - load), in the time without prefills."""
    prefill_load = 0.5 * 0.1
    others = 1 / (1 - prefill_load) ** 2 - 1
    load = 0.5 / (1 - prefill_load)

    found = _stable(0.5, _linear(0.0, 1.0, steps=1, cap=300, prefill=0.1), sizes)

    expected = (1 + others / (1 + sizes.squared_cv)) / (1 - load) / (1 - prefill_load)
    assert pytest.approx(expected, rel=1e-6) == found.service


@pytest.mark.parametrize("prefill", [0.1, 0.5])
def test_a_batch_cap_of_one_with_prefills_is_an_mg1_queue(prefill: float) -> None:
    """Prefills block no other request; queueing delay is Pollaczek-Khinchine for prefill plus decoding, within 3.5%."""
    sizes = RequestSizes(np.linspace(0.0, 2.0, 201), np.zeros(201))
    work_W, rate = prefill + sizes.mean_W, 0.7 / (1 + prefill)
    wait = rate * float((work_W**2).mean()) / 2 / (1 - 0.7)

    found = _stable(rate, _linear(1.0, 0.0, steps=1, cap=1, prefill=prefill), sizes)

    assert pytest.approx((prefill, 1.0, rate)) == (found.prefill, found.service, found.batch)
    assert pytest.approx(wait, rel=0.035) == found.queue


def test_a_load_at_or_above_capacity_has_no_latency() -> None:
    """Just below capacity the queueing delay is long."""
    capacity = _linear(0.02, 0.001, steps=50, cap=8)

    assert pytest.approx(8 / (50 * 0.028)) == capacity.stability_limit
    assert latency(capacity.stability_limit, capacity, EQUAL) is None
    assert latency(2 * capacity.stability_limit, capacity, EQUAL) is None
    assert _stable(0.999 * capacity.stability_limit, capacity).queue > 10


def test_the_largest_load_below_capacity_has_a_latency() -> None:
    """Whatever the rounding."""
    for prefill in (0.0, 0.003, 0.01):
        capacity = _linear(0.02, 0.001, steps=50, cap=2, prefill=prefill)
        assert np.isfinite(_stable(float(np.nextafter(capacity.stability_limit, 0.0)), capacity).mean)


def test_active_experts_cost_nothing_more() -> None:
    """A saturating step time gives a service time above that of batch size 1 and below the linear one of the same slope."""
    count_N = np.arange(1, 201)
    step_N = 0.01 + 0.02 * (1 - 0.95**count_N)
    found = _stable(10.0, ServerCapacity(50 * step_N, step_N, 0.0))
    wait = _stable(10.0, ServerCapacity(50 * (0.01 + 0.001 * count_N), 0.01 + 0.001 * count_N, 0.0))

    assert 50 * step_N[0] < found.service < wait.service


def test_the_mean_is_the_sum_of_its_components_and_p95_is_larger() -> None:
    """The p95 is that of the large requests, 2.5 times the mean size."""
    sizes = RequestSizes(np.array([0.5, 0.5, 0.5, 2.5]), np.zeros(4))
    found = _stable(5.0, _linear(0.02, 0.001, steps=50, cap=32, prefill=0.01), sizes)

    assert pytest.approx(found.queue + found.admission + found.prefill + found.service) == found.mean
    assert found.mean < found.quantile(0.95)
    assert pytest.approx(2.5 * found.service, rel=0.2) == found.quantile(0.95)


def test_equal_requests_at_low_load_have_equal_latency() -> None:
    """At negligible load the p95 is the mean."""
    found = _stable(1e-6, _linear(0.02, 0.001, steps=50, cap=32))

    assert pytest.approx(50 * 0.021, rel=1e-4) == found.mean
    assert pytest.approx(found.mean, rel=1e-3) == found.quantile(0.95)
