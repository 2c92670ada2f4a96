"""Medians of turns and their bounds."""

import random

import pytest

from pipeline.acceptance.decoding_speed import Measured, least_turns, of_turns


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


@pytest.mark.parametrize(("confidence", "least"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.995, 9), (0.999, 11)])
def test_the_turns_that_are_asked_for_are_enough(confidence: float, least: int) -> None:
    """And one fewer are not."""
    assert least == least_turns(confidence)
    assert of_turns([100.0] * least, confidence).low is not None
    assert of_turns([100.0] * (least - 1), confidence).low is None
