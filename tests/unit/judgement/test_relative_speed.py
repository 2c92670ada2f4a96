"""The speed of a candidate over a draft of another kind: examined tokens per target call, and the times of rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.gains import tokens_per_round_ratio
from pipeline.acceptance.step_times import StepTimes
from pipeline.judgement.at_load import StatedLoad
from pipeline.judgement.measured_speed import measured_speed
from pipeline.judgement.relative_speed import RoundRatio, measured_ratio, predicted_ratio, speed_gain
from pipeline.judgement.schema import BASELINE, CANDIDATE, Side
from tests.fakes import counted
from tests.unit.judgement.test_measured_speed import TIMES, _examined
from tests.unit.latency.load.test_prediction import WORKLOAD, step_costs_of

TIMED = replace(TIMES, target_passes="compiled")
EXACT = RoundRatio(1.0, 1.0, 1.0, "")


def _counts(calls_N: Any) -> list[Any]:
    return [counted(f"p{number}", 50.0, calls=float(calls)) for number, calls in enumerate(calls_N)]


def test_the_interval_of_the_ratio_of_tokens_per_round_covers_it() -> None:
    """95% intervals of 400 draws of 60 paired prompts, each with 25 accepted draft tokens: fewer than 360 cover with a chance of
    2e-5."""
    source, covered = np.random.default_rng(5), 0
    for _ in range(400):
        shared_N = source.uniform(20, 60, 60)
        ours_N, theirs_N = (shared_N * source.uniform(low, 1.0, 60) for low in (0.6, 0.8))
        found = tokens_per_round_ratio(_counts(ours_N), _counts(theirs_N), 5, 0.95)
        covered += found.low <= (1 + 25 / 32) / (1 + 25 / 36) <= found.high
        ours, theirs = (1 + 25 / float(np.mean(one_N)) for one_N in (ours_N, theirs_N))
        assert found.value == pytest.approx(ours / theirs)
    assert 360 <= covered


def test_the_gain_has_the_errors_of_the_tokens_and_of_the_times() -> None:
    calls_N = np.random.default_rng(1).uniform(30, 50, 40)
    ours, theirs = _counts(calls_N), _counts(calls_N * np.random.default_rng(2).uniform(0.9, 1.3, 40))
    tokens = tokens_per_round_ratio(ours, theirs, 3, 0.95)
    exact = speed_gain(ours, theirs, 3, replace(EXACT, value=2.0, low=2.0, high=2.0), 0.95)
    measured = speed_gain(ours, theirs, 3, RoundRatio(2.0, 1.8, 2.1, ""), 0.95)
    same = speed_gain(ours, ours, 3, RoundRatio(2.0, 1.8, 2.1, ""), 0.95)

    assert (exact.value, exact.low, exact.high) == pytest.approx(
        (2 * tokens.value - 1, 2 * tokens.low - 1, 2 * tokens.high - 1)
    )
    assert exact.error == pytest.approx(2 * tokens.error)
    assert measured.low < exact.low < exact.high < measured.high
    assert (1.0, 0.8, 1.1) == pytest.approx((same.value, same.low, same.high))  # the times alone


def test_too_few_prompts_prove_no_gain() -> None:
    found = speed_gain(_counts([30, 40]), _counts([35, 50]), 5, EXACT, 0.95)
    assert (-np.inf, np.inf) == (found.low, found.high)


def _measured(times: dict[Side, StepTimes], gamma: int = 3) -> RoundRatio | str:
    examinations = {CANDIDATE: _examined("again"), BASELINE: _examined("base")}
    return measured_ratio(times, measured_speed(times, examinations, (), 0.95), gamma, 0.95)


def test_measured_rounds_are_compared_with_plain_steps_of_their_own_turn() -> None:
    """A machine that was twice as slow in the turns of one draft says nothing of that draft."""
    plain, rounds = [1.0] * 9, {1: [2.0] * 9, 3: [4.0] * 9}
    fast = replace(TIMED, plain=plain, rounds=rounds)
    slow = replace(TIMED, plain=[2.0] * 9, rounds={1: [5.0] * 9, 3: [10.0] * 9})

    found, between = _measured({CANDIDATE: slow, BASELINE: fast}), _measured({CANDIDATE: slow, BASELINE: fast}, 2)
    assert isinstance(found, RoundRatio)
    assert isinstance(between, RoundRatio)
    assert (0.8, 0.8, 0.8) == pytest.approx((found.value, found.low, found.high))
    assert "measured on cpu" == found.source
    assert 3.0 / 3.75 == pytest.approx(between.value)  # by interpolation
    assert found == _measured({CANDIDATE: slow, BASELINE: fast}, 4)  # no more than 3 are proposed


def test_bounds_of_measured_rounds_are_those_of_both_sides() -> None:
    source = np.random.default_rng(3)
    noisy = replace(TIMED, plain=[1.0] * 9, rounds={1: [2.0] * 9, 3: (4 * source.uniform(0.9, 1.1, 9)).tolist()})
    quiet = replace(TIMED, plain=[1.0] * 9, rounds={1: [2.0] * 9, 3: [4.0] * 9})
    one, other = _measured({CANDIDATE: noisy, BASELINE: quiet}), _measured({CANDIDATE: quiet, BASELINE: noisy})
    assert isinstance(one, RoundRatio)
    assert isinstance(other, RoundRatio)
    assert one.low < one.value < one.high
    assert (1 / other.value, 1 / other.high, 1 / other.low) == pytest.approx((one.value, one.low, one.high))


def test_why_speeds_are_not_compared() -> None:
    """Without step times of both, and where those of one are too noisy to be a measurement."""
    wild = replace(TIMED, rounds={1: [1.1] * 6, 3: [1.0, 9.0, 1.0, 9.0, 1.0, 9.0]})
    elsewhere = replace(TIMED, target_passes="eager")
    assert "different ways (compiled, eager)" in str(_measured({CANDIDATE: TIMED, BASELINE: elsewhere}))
    assert "different ways (unknown, unknown)" in str(_measured({CANDIDATE: TIMES, BASELINE: TIMES}))
    assert "set evaluate.speed.turns" in str(_measured({CANDIDATE: TIMED}))
    assert "set evaluate.speed.turns" in str(measured_ratio({}, None, 3, 0.95))
    assert "step times differ by a factor" in str(_measured({CANDIDATE: TIMED, BASELINE: wild}))


@pytest.mark.parametrize("rate", [0.01, 1e6])
def test_predicted_rounds_are_those_of_the_batch_that_is_served(rate: float) -> None:
    """The mean batch with the champion; a full one where the load exceeds its capacity."""
    ours, theirs = (
        StatedLoad(step_costs=step_costs_of(cost), requests_per_second=rate, max_batch=16, gamma=2, quantiles=[0.95])
        for cost in (0.0005, 0.002)
    )
    found = predicted_ratio(ours, WORKLOAD, theirs, WORKLOAD)
    batch, context = 1 if rate < 1 else 16, round(WORKLOAD.context)
    steps = [load.step_costs.steps(16, context, 2)[2, batch - 1] for load in (theirs, ours)]

    assert (found.value, found.value) == (found.low, found.high)
    assert steps[0] / steps[1] == pytest.approx(found.value)
    assert found.source.startswith(f"predicted at the stated load, {batch} in a batch")
    assert 1 < found.value
