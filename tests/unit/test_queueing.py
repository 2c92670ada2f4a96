"""Latency under load: the closed form against those of the textbooks."""

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
def test_steps_that_grow_with_the_batch_give_the_formula_of_kong(load: float) -> None:
    """L = S (a + b) / (1 - rate S b), with a batch cap that is never met."""
    capacity = _linear(0.02, 0.001, steps=50, cap=2000)
    rate = load / (50 * 0.001)

    assert pytest.approx(50 * 0.021 / (1 - load), rel=1e-6) == _stable(rate, capacity).service


def test_steps_that_take_as_long_in_any_company_are_never_slowed() -> None:
    """As with servers without number: the batch is rate times time, by Little's law."""
    found = _stable(30.0, _linear(0.02, 0.0, steps=50, cap=400))

    assert pytest.approx(1.0) == found.service
    assert pytest.approx(30.0) == found.batch
    assert pytest.approx(0.01, rel=1e-3) == found.admission


@pytest.mark.parametrize("load", [0.7, 0.9999])
def test_a_batch_of_one_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """rate E[S^2] / 2 (1 - load), for requests of unequal size and luck."""
    sizes = RequestSizes(np.array([0.5, 1.5]), np.array([0.1, 0.3]))
    second_moment = (0.5**2 + 1.5**2 + 0.1 + 0.3) / 2

    found = _stable(load, _linear(1.0, 0.0, steps=1, cap=1), sizes)

    assert pytest.approx(load * second_moment / (2 * (1 - load))) == found.queue
    assert pytest.approx(1.0) == found.service
    assert pytest.approx(load) == found.busy


def test_the_server_shared_by_all_is_processor_sharing() -> None:
    """Where a step takes each its share, an answer takes size / (1 - load), whatever the cap."""
    found = _stable(0.5, _linear(0.0, 1.0, steps=1, cap=300))

    assert pytest.approx(2.0) == found.service


def test_who_comes_during_a_prefill_begins_with_the_next() -> None:
    """The mean busy period of prefills that a request is in holds 1 / 0.9^2 of them. The limit counts prefills as work."""
    plain, slowed = _linear(0.02, 0.001, 50, 2000), _linear(0.02, 0.001, 50, 2000, prefill=0.01)

    assert pytest.approx(0.01 / 0.9**2) == _stable(10.0, slowed).prefill
    assert pytest.approx(1 / (50 * 0.001 * 2020 / 2000 + 0.01)) == slowed.stability_limit
    assert slowed.stability_limit < plain.stability_limit


@pytest.mark.parametrize(
    "sizes", [EQUAL, RequestSizes(np.array([0.5, 1.5]), np.array([0.1, 0.3])), RequestSizes(np.ones(1), np.ones(1))]
)
def test_clusters_share_a_processor_as_batches_of_arrivals_do(sizes: RequestSizes) -> None:
    """Of b others on the average: (1 + b / (1 + cv^2)) / (1 - load), in the time that prefills leave."""
    prefill_load = 0.5 * 0.1
    others = 1 / (1 - prefill_load) ** 2 - 1
    load = 0.5 / (1 - prefill_load)

    found = _stable(0.5, _linear(0.0, 1.0, steps=1, cap=300, prefill=0.1), sizes)

    expected = (1 + others / (1 + sizes.squared_cv)) / (1 - load) / (1 - prefill_load)
    assert pytest.approx(expected, rel=1e-6) == found.service


@pytest.mark.parametrize("prefill", [0.1, 0.5])
def test_a_batch_of_one_is_prefilled_in_turn(prefill: float) -> None:
    """Nobody stops anybody, and the line is that of Pollaczek and Khinchine for prefill and steps together, within 2.5%."""
    sizes = RequestSizes(np.linspace(0.0, 2.0, 201), np.zeros(201))
    work_W, rate = prefill + sizes.mean_W, 0.7 / (1 + prefill)
    wait = rate * float((work_W**2).mean()) / 2 / (1 - 0.7)

    found = _stable(rate, _linear(1.0, 0.0, steps=1, cap=1, prefill=prefill), sizes)

    assert pytest.approx((prefill, 1.0, rate)) == (found.prefill, found.service, found.batch)
    assert pytest.approx(wait, rel=0.025) == found.queue


def test_a_load_beyond_the_limit_has_no_latency() -> None:
    """Nor the limit itself; just below it there is one, and it is long."""
    capacity = _linear(0.02, 0.001, steps=50, cap=8)

    assert pytest.approx(8 / (50 * 0.028)) == capacity.stability_limit
    assert latency(capacity.stability_limit, capacity, EQUAL) is None
    assert latency(2 * capacity.stability_limit, capacity, EQUAL) is None
    assert _stable(0.999 * capacity.stability_limit, capacity).queue > 10


def test_the_last_load_before_the_limit_has_a_latency() -> None:
    """However it is rounded."""
    for prefill in np.linspace(0.0, 0.01, 8):
        capacity = _linear(0.02, 0.001, steps=50, cap=2, prefill=float(prefill))
        assert np.isfinite(_stable(float(np.nextafter(capacity.stability_limit, 0.0)), capacity).mean)


def test_experts_that_are_awake_already_cost_no_more() -> None:
    """A step that stops growing: between no sharing and full sharing, and below the linear form of the same slope."""
    count_N = np.arange(1, 201)
    step_N = 0.01 + 0.02 * (1 - 0.95**count_N)
    found = _stable(10.0, ServerCapacity(50 * step_N, step_N, 0.0))
    wait = _stable(10.0, ServerCapacity(50 * (0.01 + 0.001 * count_N), 0.01 + 0.001 * count_N, 0.0))

    assert 50 * step_N[0] < found.service < wait.service


def test_the_mean_is_the_sum_of_its_parts_and_the_tail_lies_above() -> None:
    """And a request twice the size takes twice as long."""
    sizes = RequestSizes(np.array([0.5, 0.5, 0.5, 2.5]), np.zeros(4))
    found = _stable(5.0, _linear(0.02, 0.001, steps=50, cap=32, prefill=0.01), sizes)

    assert pytest.approx(found.queue + found.admission + found.prefill + found.service) == found.mean
    assert found.mean < found.p95
    assert pytest.approx(2.5 * found.service, rel=0.2) == found.p95


def test_equal_requests_alone_are_answered_alike() -> None:
    """At next to no load the 95th percentile is the mean."""
    found = _stable(1e-6, _linear(0.02, 0.001, steps=50, cap=32))

    assert pytest.approx(50 * 0.021, rel=1e-4) == found.mean
    assert pytest.approx(found.mean, rel=1e-3) == found.p95
