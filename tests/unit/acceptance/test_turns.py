"""Medians of turns, their bounds, and speedups that turns cannot measure."""

import random

import pytest

from pipeline.acceptance.decoding_speed import Measured
from pipeline.acceptance.turns import least_turns, of_turns, speed_of_turns


@pytest.mark.parametrize(
    ("count", "low", "high"), [(5, None, None), (6, 0.0, 5.0), (8, 0.0, 7.0), (9, 1.0, 7.0), (15, 3.0, 11.0)]
)
def test_the_bounds_are_the_order_statistics_of_the_sign_test(
    count: int, low: float | None, high: float | None
) -> None:
    """As in the tables for the median: of 15 values the 4th smallest and the 4th largest."""
    assert Measured((count - 1) / 2, low, high) == of_turns([float(number) for number in range(count)])


def test_the_bounds_hold_the_median_as_often_as_they_say() -> None:
    """9 skewed values, 96.1% in theory; of 4,000 draws fewer than 95% hold it with a chance below 1 in 1,000."""
    draw = random.Random(0)
    held = 0
    for _ in range(4_000):
        found = of_turns([draw.expovariate(1.0) for _ in range(9)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.6931 <= found.high
    assert 0.95 < held / 4_000 < 0.97


def test_no_turns_are_an_error() -> None:
    """A figure of nothing is none."""
    with pytest.raises(ValueError, match="no turns"):
        of_turns([])


def test_the_speedup_is_that_within_each_turn() -> None:
    """A machine that is twice as slow in half of the turns leaves the speedup as it is, and widens the rate."""
    plain = [100.0, 50.0, 100.0, 50.0, 100.0, 50.0]
    found = speed_of_turns([1.2 * one for one in plain], plain, 3)
    assert found.speedup is not None
    assert pytest.approx((1.2, 1.2, 1.2)) == (found.speedup.median, found.speedup.low, found.speedup.high)
    assert (60.0, 120.0) == (found.tokens_per_second.low, found.tokens_per_second.high)


@pytest.mark.parametrize(
    ("ours", "reason"),
    [
        ([100.0] * 5, "5 turns are too few for a 95% interval; take 6"),
        (
            [100.0, 120.0, 90.0, 210.0, 100.0, 100.0],
            "it was 0.90 in one turn and 2.10 in another; is something else running?",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(ours: list[float], reason: str) -> None:
    """A figure that another call would contradict is worse than none."""
    found = speed_of_turns(ours, [100.0] * len(ours), 3)
    assert (None, reason) == (found.speedup, found.not_measurable)


@pytest.mark.parametrize(("confidence", "least"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.995, 9), (0.999, 11)])
def test_the_turns_that_are_asked_for_are_enough(confidence: float, least: int) -> None:
    """Nobody is told to take as many as were taken."""
    found = speed_of_turns([100.0] * (least - 1), [100.0] * (least - 1), 3, confidence)
    assert str(found.not_measurable).endswith(f"{100 * confidence:g}% interval; take {least}")
    assert least == least_turns(confidence)
    assert speed_of_turns([100.0] * least, [100.0] * least, 3, confidence).speedup is not None
