"""Predictions at a stated load, with intervals over prompts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.latency.load.prediction import chosen_lengths, predict
from pipeline.latency.load.serving import jackknife, latency_at_load
from pipeline.latency.load.workload import Workload
from tests.unit.latency.load.test_prediction import WORKLOAD, step_costs_of


def _spread(prompts: int, seed: int = 0) -> Workload:
    """Outputs of 50 to 350 tokens with rounds in proportion."""
    return _scaled(np.random.default_rng(seed).uniform(0.25, 1.75, prompts))


def _scaled(share_W: NDArray[np.float64]) -> Workload:
    """Outputs of so many times 200 tokens."""
    return replace(
        WORKLOAD,
        prompt_tokens_W=np.full(len(share_W), 100),
        tokens_W=np.round(200 * share_W).astype(int),
        rounds_GW=WORKLOAD.rounds_GW * share_W,
        variance_GW=WORKLOAD.variance_GW * share_W,
    )


def test_a_mean_has_the_interval_of_a_mean() -> None:
    """The jackknife of a mean is Student's t interval."""
    values = np.random.default_rng(1).standard_normal(20)
    without = [float(np.delete(values, one).mean()) for one in range(20)]
    found = jackknife(float(values.mean()), list(without), 20, 0.95)
    half = stdtrit(19, 0.975) * values.std(ddof=1) / math.sqrt(20)

    assert found is not None
    np.testing.assert_allclose([found.low, found.high], values.mean() + half * np.array([-1, 1]))


@pytest.mark.parametrize("without", [[], [1.0], [1.0, None, 1.0]])
def test_bounds_need_every_group(without: list[float | None]) -> None:
    """Bounds are infinite with too few groups or with an unstable subset."""
    found = jackknife(1.0, without, 3, 0.95)

    assert found is not None
    assert (-math.inf, math.inf) == (found.low, found.high)
    assert jackknife(None, without, 3, 0.95) is None


@pytest.mark.parametrize(("draws", "least"), [(2, 1), pytest.param(40, 30, marks=pytest.mark.long)])
def test_a_load_is_served_as_predicted(draws: int, least: int) -> None:
    """The p95 of the distribution that prompts are drawn from is within the 95% interval from 40 of them in at least 1 of 2
    draws (fewer has a probability of 0.25%; seeded), or 30 of 40 (below 1e-4)."""
    step_costs, all_of_them = step_costs_of(0.0005), _scaled(0.25 + 1.5 * (np.arange(1000) + 0.5) / 1000)
    truth = predict(all_of_them, step_costs, chosen_lengths(all_of_them, step_costs, 16, 2), [2.0]).points[0]
    assert truth.speculative is not None
    within = 0
    for seed in range(draws):
        served = latency_at_load(_spread(40, seed), step_costs, 2.0, 16, 2, confidence=0.95, quantiles=[0.95])
        found = served.quantiles[0.95]
        within += found.low <= truth.speculative.quantile(0.95) <= found.high
    assert within >= least


def test_turns_of_a_conversation_are_left_out_together() -> None:
    """The same requests four times as four turns of each conversation give the interval of one turn each, not one that is half as
    wide."""
    step_costs, single = step_costs_of(0.0005), _spread(40)
    four = replace(
        single,
        prompt_tokens_W=np.repeat(single.prompt_tokens_W, 4),
        tokens_W=np.repeat(single.tokens_W, 4),
        rounds_GW=np.repeat(single.rounds_GW, 4, axis=1),
        variance_GW=np.repeat(single.variance_GW, 4, axis=1),
        unit_W=np.repeat(np.arange(40), 4),
    )
    (one, other) = (
        latency_at_load(some, step_costs, 2.0, 16, 2, confidence=0.95, quantiles=[]).speedup for some in (single, four)
    )

    assert one is not None
    assert other is not None
    np.testing.assert_allclose([one.value, one.low, one.high], [other.value, other.low, other.high])
    assert (160, 40, None) == (other.prompts, other.conversations, one.conversations)


def test_what_is_not_stable_has_no_figure() -> None:
    """Above the capacity of plain decoding there is no speedup; above both capacities there is no figure."""
    step_costs = step_costs_of(0.0005)
    limit = predict(WORKLOAD, step_costs, chosen_lengths(WORKLOAD, step_costs, 16, 3), [])
    between, beyond = (
        latency_at_load(WORKLOAD, step_costs, rate, 16, 3, confidence=0.95, quantiles=[0.5, 0.99])
        for rate in ((limit.plain_limit + limit.speculative_limit) / 2, 1.01 * limit.speculative_limit)
    )

    assert between.speedup is None
    assert between.mean is not None
    assert [0.5, 0.99] == list(between.quantiles)
    assert (None, None, {}) == (beyond.mean, beyond.speedup, beyond.quantiles)


def test_figures_are_the_predictions() -> None:
    """Each figure equals the prediction and has its own interval."""
    step_costs, many = step_costs_of(0.0005), _spread(40)
    point = predict(many, step_costs, chosen_lengths(many, step_costs, 16, 2), [2.0]).points[0]
    found = latency_at_load(many, step_costs, 2.0, 16, 2, confidence=0.95, quantiles=[0.5, 0.95, 0.99])

    assert point.speculative is not None
    assert point.plain is not None
    assert point.speedup is not None
    assert found.speedup is not None
    assert (point.speculative.mean, point.speedup) == (found.mean, found.speedup.value)
    quantiles = {quantile: point.speculative.quantile(quantile) for quantile in (0.5, 0.95, 0.99)}
    assert quantiles == {quantile: one.value for quantile, one in found.quantiles.items()}
    assert quantiles[0.5] < quantiles[0.95] < quantiles[0.99]
    assert 0.5 * point.speedup < found.speedup.low < point.speedup < found.speedup.high < 2 * point.speedup
    assert 40 == found.speedup.prompts
