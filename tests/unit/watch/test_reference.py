"""Level and spread of planted hours, by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.config.watch import WatchConfig
from pipeline.watch.reference import HOUR, SLOTS, Reference, Sums, assumed, learned, with_look
from pipeline.watch.share import FIRST, WatchedShare

SETTINGS = WatchConfig()


def _share(trials: float, rate: float) -> WatchedShare:
    return WatchedShare(name=FIRST, trials=trials, successes=trials * rate, predicted=0.7)


def _hours(deviation: Callable[[int], float], looks: int = 12, trials: float = 175.0, days: int = 8) -> list[Sums]:
    """By hour; within one all looks are alike."""
    found = []
    for hour in range(days * 24):
        one = Sums(number=hour)
        for _ in range(looks):
            one = one.plus(_share(trials, 0.7 + deviation(hour)), HOUR / looks)
        found.append(one)
    return found


def _learned(hours: list[Sums], dependence: int = 1) -> Reference:
    found = learned(hours, SETTINGS, dependence)
    assert found is not None
    return found


def test_the_spread_of_blocks_is_an_upper_bound() -> None:
    """Days that deviate by a point in turn, with 56 degrees of freedom: the spread is larger with a chance of one in ten only."""
    found = _learned(_hours(lambda hour: 0.05 + (0.01 if hour // 24 % 2 else -0.01)))
    assert [0.05] * SLOTS == pytest.approx(found.level)
    assert math.sqrt(64 * 0.01**2 / 42.937) == pytest.approx(found.block, rel=1e-3)  # chi square of 56 at 0.1
    assert (8.0, 175.0) == pytest.approx((found.days, found.typical))


def test_the_band_is_the_largest_hour_less_its_sampling_error() -> None:
    """Hours of 2,100 drafts at 0, +2 and -2 points: a square of 2.67e-4, of which 0.21 / 2100 is sampling."""
    found = _learned(_hours(lambda hour: (0.0, 0.02, -0.02)[hour % 3]))
    assert 0.02 * math.sqrt(1 - 1e-4 / (2 * 0.02**2 / 3)) == pytest.approx(found.band)


def test_an_hour_of_little_traffic_makes_no_band() -> None:
    """Ten drafts of which none was accepted."""
    hours = _hours(lambda hour: (0.0, 0.02, -0.02)[hour % 3])
    wide = _learned(hours).band
    hours[30] = Sums(number=30).plus(_share(10.0, 0.0), HOUR)
    assert wide == pytest.approx(_learned(hours).band, rel=0.05)


def test_the_design_effect_of_two_looks_an_hour() -> None:
    """Clusters of four drafts: an hour's mean takes one of its two degrees of freedom. An hour of one look says nothing."""
    rng, hours = np.random.default_rng(5), list[Sums]()
    for hour in range(60 * 24):
        one = Sums(number=hour)
        for _ in range(2 if hour % 3 else 1):
            one = one.plus(_share(2000.0, 4 * rng.binomial(500, 0.7) / 2000), HOUR / 2)
        hours.append(one)
    assert _learned(hours).design_effect == pytest.approx(4, rel=0.1)


def test_a_block_of_the_day_without_traffic_has_the_mean_level() -> None:
    """Nights without a request."""
    found = _learned([one for one in _hours(lambda hour: 0.03, days=10) if one.number % 24 >= 6])
    assert [0.03] * SLOTS == pytest.approx(found.level)


def test_a_reference_needs_a_block_of_the_day_twice() -> None:
    """A look every 27 hours is of another one each time: nothing says how much they vary."""
    hours = tuple[Sums, ...]()
    for look in range(7):
        hours = with_look(hours, _share(1e5, 0.7), (look + 1) * 27 * HOUR, 27 * HOUR)
    assert None is learned(hours, SETTINGS, 1)


def test_draft_tokens_count_for_their_drafts() -> None:
    """Of 5 tokens a draft, 20,000 drafts are 100,000."""
    hours = _hours(lambda hour: 0.0, trials=40.0)
    assert [False, True] == [learned(hours, SETTINGS, gamma) is None for gamma in (1, 5)]


def test_hours_are_bounded_and_those_of_the_middle_of_a_look() -> None:
    """A year and a day, for a deployment with too few drafts to learn from."""
    hours = tuple(Sums(number=number) for number in range(24 * 366))
    after = with_look(hours, _share(1.0, 1.0), 24 * 366 * HOUR + 200, 300.0)
    assert (24 * 366, 1, 24 * 366) == (len(after), after[0].number, after[-1].number)
    before = with_look(hours, _share(1.0, 1.0), 24 * 366 * HOUR + 100, 300.0)
    assert (0, 1.0) == (before[0].number, before[-1].n)


def test_half_of_the_stated_band_is_common_to_a_look() -> None:
    """So the share of a look with any traffic has at least that standard deviation, at an acceptance of a half."""
    reference = assumed(SETTINGS, _share(1.0, 1.0))
    assert SETTINGS.band / 2 == pytest.approx(math.sqrt(reference.effect_of(1e9) / 4 / 1e9))
