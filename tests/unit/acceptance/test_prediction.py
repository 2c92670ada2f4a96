"""The interval of a figure over prompts that were not examined."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.acceptance.prediction import prediction_interval
from pipeline.acceptance.schema import Bounds

EXAMINED, DRAWS = 200, 1000
Floats = NDArray[np.float64]


def _population(generator: np.random.Generator, prompts: int) -> tuple[Floats, Floats, Floats]:
    """Expected accepted tokens and rounds of prompts, and the variance of the rounds of one decode.

    Lengths are lognormal, acceptance differs by prompt and by domain, and the domain is random.
    """
    tokens_N = np.ceil(generator.lognormal(4.5, 0.7, prompts))
    domain_N = generator.random(prompts) < 0.3
    rate_N = generator.beta(np.where(domain_N, 2.0, 6.0), 3.0)
    rounds_N = tokens_N / (1 + 4 * rate_N)
    return tokens_N - rounds_N, rounds_N, 0.5 * rounds_N


def _estimate(accepted_N: Floats, rounds_N: Floats, confidence: float = 0.95) -> Interval:
    nothing_N = np.zeros_like(rounds_N)
    return ratio_gain(accepted_N, rounds_N, nothing_N, rounds_N, ["all"] * len(rounds_N), confidence)


def _decode_variance(accepted_N: Floats, rounds_N: Floats, variance_N: Floats) -> float:
    total = rounds_N.sum()
    return float((1 + accepted_N.sum() / total) ** 2 * variance_N.sum() / total**2)


@pytest.mark.parametrize(("fresh", "by_mean"), [(50, 0.7), (1000, 0.95)])
def test_counters_over_other_prompts_are_inside_as_often_as_stated(fresh: int, by_mean: float) -> None:
    """Of 1,000 examinations of 200 prompts, each compared with one decode of other prompts, 0.95 cover it.

    False alarm: a coverage of 0.95 has a standard error of 0.007 here and is below 0.93 or above 0.98 with a chance of 0.002; the
    draws are fixed. The confidence interval alone covers less.
    """
    generator = np.random.default_rng(fresh)
    inside = inside_of_mean = 0
    for _ in range(DRAWS):
        accepted_N, rounds_N, variance_N = _population(generator, EXAMINED)
        estimate = _estimate(accepted_N, rounds_N)
        bounds = prediction_interval(estimate, _decode_variance(accepted_N, rounds_N, variance_N), fresh, 0.95)
        accepted_N, rounds_N, variance_N = _population(generator, fresh)
        noise = generator.normal(0, variance_N**0.5).sum()  # more rounds, and as many accepted tokens less
        found = (accepted_N.sum() - noise) / (rounds_N.sum() + noise)
        assert bounds.low is not None
        assert bounds.high is not None
        inside += bounds.low <= found <= bounds.high
        inside_of_mean += estimate.low <= found <= estimate.high

    assert 0.93 <= inside / DRAWS <= 0.98
    assert inside_of_mean / DRAWS < by_mean


def test_of_infinitely_many_prompts_it_is_the_confidence_interval() -> None:
    """Skewness included; for fewer prompts it is wider on both sides."""
    accepted_N, rounds_N, variance_N = _population(np.random.default_rng(0), EXAMINED)
    estimate = _estimate(accepted_N, rounds_N)
    noise = _decode_variance(accepted_N, rounds_N, variance_N)
    wide, narrow, none = (prediction_interval(estimate, noise, prompts, 0.95) for prompts in (100, 10_000, 10**15))

    assert (estimate.low, estimate.high) == pytest.approx((none.low, none.high))
    assert wide.low is not None
    assert wide.high is not None
    assert narrow.low is not None
    assert narrow.high is not None
    assert wide.low < narrow.low < estimate.low
    assert estimate.high < narrow.high < wide.high


def test_by_hand() -> None:
    """Equal prompts without skewness: t s sqrt(1/n + 1/N), for n = N a factor of sqrt(2)."""
    estimate = Interval(2.0, 1.9, 2.1, 100, error=0.05, dof=float("inf"), skewness=0.0)
    half = 1.959964 * 0.05 * math.sqrt(2)

    assert (2 - half, 2 + half) == pytest.approx(
        tuple(vars(prediction_interval(estimate, 0.0, 100, 0.95)).values()), abs=1e-6
    )


def test_without_an_interval_or_without_variance() -> None:
    """Too few prompts give no interval. Prompts that do not differ leave the decode's own randomness, for few other prompts."""
    unknown, exact = Interval(2.0, float("-inf"), float("inf"), 3), Interval(2.0, 2.0, 2.0, 30)

    assert Bounds(None, None) == prediction_interval(unknown, 0.1, 100, 0.95)
    assert Bounds(2.0, 2.0) == prediction_interval(exact, 0.0, 100, 0.95)
    half = 1.959964 * 0.1 * math.sqrt(30 / 100)
    assert (2 - half, 2 + half) == pytest.approx(
        tuple(vars(prediction_interval(exact, 0.01, 100, 0.95)).values()), abs=1e-6
    )


def test_turns_of_a_conversation_are_predicted_as_one() -> None:
    """40 prompts of 20 conversations predict 100 prompts as 20 prompts predict 50."""
    alone = Interval(0.7, 0.65, 0.73, 20, 0.02, 15.0, 0.8)
    of_turns = Interval(0.7, 0.65, 0.73, 40, 0.02, 15.0, 0.8, conversations=20)
    assert prediction_interval(of_turns, 1e-4, 100, 0.95) == prediction_interval(alone, 1e-4, 50, 0.95)
