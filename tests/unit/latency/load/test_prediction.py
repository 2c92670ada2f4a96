"""Predictions for a workload at given loads."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.load.prediction import DEFAULT_LOADS, SimulatedLatency, chosen_lengths, predict
from pipeline.latency.load.workload import Workload, constant_acceptance_workload

WORKLOAD = constant_acceptance_workload(0.7, prompt_tokens=100, tokens=200, gammas=3)


@cache
def step_costs_of(each: float, prefill: float | None = None) -> FittedCosts:
    """Step costs: 20 ms, 2 ms per draft token, `each` seconds per request and per request and draft token."""
    return fit_measurements(
        [
            Measurement(
                where="",
                requests=n,
                gamma=gamma,
                tokens_per_step=1.0,
                step_seconds=0.02 + 0.002 * gamma + n * each * (1 + gamma),
                ttft=prefill,
                isolated=True,
            )
            for n in (1, 2, 8, 16)
            for gamma in (0, 1, 2, 3)
        ]
    )


def test_constant_acceptance_gives_the_rounds_of_the_closed_form() -> None:
    """199 tokens after the first, 1 + a + a^2 + ... per round, except at the end."""
    for gamma in (1, 2, 3):
        assert pytest.approx(199 / iid_tokens_per_call(0.7, gamma), rel=0.01) == WORKLOAD.rounds_G[gamma]
    assert 199 == WORKLOAD.rounds_G[0]


def test_draft_length_falls_with_batch_size() -> None:
    """If draft tokens cost time per request; a given draft length is used for every batch size. At batch size 1 three draft
    tokens are better than two by less than 1%, so two serve the whole stretch."""
    costs = step_costs_of(0.003)
    lengths_N = chosen_lengths(WORKLOAD, costs, 16)
    alone_G = WORKLOAD.rounds_G * costs.steps(1, 100, 3)[:, 0]

    assert 3 == alone_G.argmin()
    assert alone_G[2] < 1.01 * alone_G[3]
    assert 2 == lengths_N[0]
    assert 0 == lengths_N[-1]
    assert (np.diff(lengths_N) <= 0).all()
    assert [2] * 4 == chosen_lengths(WORKLOAD, step_costs_of(0.003), 4, gamma=2).tolist()


def test_speculation_has_the_larger_capacity() -> None:
    """Above the capacity of either one its latency and the speedup are None."""
    step_costs = step_costs_of(0.0005)
    lengths_N = chosen_lengths(WORKLOAD, step_costs, 16)
    found = predict(WORKLOAD, step_costs, lengths_N, [])

    assert len(DEFAULT_LOADS) == len(found.points)
    assert found.plain_limit < found.speculative_limit
    for point in found.points:
        assert (point.rate < found.plain_limit) == (point.plain is not None) == (point.speedup is not None)
        assert point.speculative is not None
    assert predict(WORKLOAD, step_costs, lengths_N, [2 * found.speculative_limit]).points[0].speculative is None


def test_replicas_share_the_load() -> None:
    """Twice the rate on two replicas equals the rate on one."""
    step_costs = step_costs_of(0.0005)
    lengths_N = chosen_lengths(WORKLOAD, step_costs, 16)
    one, two = (
        predict(WORKLOAD, step_costs, lengths_N, [rate], replicas=count) for rate, count in ((1.0, 1), (2.0, 2))
    )

    assert one.points[0].speculative == two.points[0].speculative
    assert pytest.approx(2 * one.speculative_limit) == two.speculative_limit


def test_first_tokens_wait_for_a_step_of_the_batch() -> None:
    """Chunked prefill: 100 ms to the first token, 24 of them a step when alone. Latency grows by more than these with the load;
    the simulation agrees, mean within 3%, p95 within 10%. Seeded, so it cannot fail by chance."""
    without = step_costs_of(0.0005)
    step_costs, lengths_N = replace(without, first_token=0.1), np.full(16, 2)
    limit = predict(WORKLOAD, step_costs, lengths_N, [1.0]).speculative_limit
    (point,) = predict(WORKLOAD, step_costs, lengths_N, [0.7 * limit], simulated=4000).points
    (other,) = predict(WORKLOAD, without, lengths_N, [0.7 * limit]).points

    assert (1, 0) == (step_costs.first_steps, without.first_steps)
    assert limit < predict(WORKLOAD, without, lengths_N, [1.0]).speculative_limit
    assert point.speculative is not None
    assert other.speculative is not None
    assert point.simulated is not None
    assert point.speculative.mean > other.speculative.mean + 0.1
    assert pytest.approx(point.simulated.mean, rel=0.03) == point.speculative.mean
    assert pytest.approx(point.simulated.quantile(0.95), rel=0.10) == point.speculative.quantile(0.95)


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_simulation_agrees(share: float) -> None:
    """Mean within 3%, p95 within 10%, with prefills of up to a fifth of the time. Seeded, so it cannot fail by chance."""
    step_costs = step_costs_of(0.0005, prefill=0.05)
    lengths_N = chosen_lengths(WORKLOAD, step_costs, 16)
    rate = share * predict(WORKLOAD, step_costs, lengths_N, [1.0]).speculative_limit
    (point,) = predict(WORKLOAD, step_costs, lengths_N, [rate], simulated=2000).points

    assert point.speculative is not None
    assert point.simulated is not None
    assert pytest.approx(point.simulated.mean, rel=0.03) == point.speculative.mean
    assert pytest.approx(point.simulated.quantile(0.95), rel=0.10) == point.speculative.quantile(0.95)


def test_unequal_requests_have_a_larger_p95() -> None:
    """At the same mean latency."""
    pair = constant_acceptance_workload(0.7, 100, 40, 3), constant_acceptance_workload(0.7, 100, 360, 3)
    mixed = Workload(
        np.array([100, 100]),
        np.array([40, 360]),
        np.hstack([one.rounds_GW for one in pair]),
        np.hstack([one.variance_GW for one in pair]),
    )
    step_costs, lengths_N = step_costs_of(0.0005), np.full(16, 3)
    equal, unequal = (predict(one, step_costs, lengths_N, [0.5]).points[0].speculative for one in (WORKLOAD, mixed))

    assert equal is not None
    assert unequal is not None
    assert pytest.approx(equal.mean, rel=0.02) == unequal.mean
    assert unequal.quantile(0.95) > 1.4 * equal.quantile(0.95)


def test_a_simulation_says_how_far_it_is_off() -> None:
    """Independent latencies have the standard error of their mean; if a hundred in a row are one, ten times that. Tolerance: 4
    times the relative error of 20 batches (1 / sqrt(38)), chance of a false alarm below 1e-3; the seed is fixed."""
    random = np.random.default_rng(0)
    alone, groups = random.exponential(1.0, 20_000), np.repeat(random.exponential(1.0, 200), 100)

    for seconds_R, error in ((alone, 20_000**-0.5), (groups, 200**-0.5)):
        found = SimulatedLatency(seconds_R)
        assert pytest.approx(error, rel=4 * 38**-0.5) == found.standard_error()
        assert pytest.approx(
            25_000 * (1.96 * found.standard_error() / 0.05 / found.mean) ** 2, abs=1
        ) == found.requests_for(0.05)
    p95 = SimulatedLatency(alone).standard_error(0.95)
    assert pytest.approx((0.95 / 0.05 / 20_000) ** 0.5, rel=4 * 38**-0.5) == p95  # sqrt(q (1 - q) / n) / density
    assert SimulatedLatency(alone[:100]).standard_error() is None
    assert SimulatedLatency(alone[:100]).requests_for(0.05) is None
