"""The e-detector keeps its promise: the mean time to a false alarm, however long and however often it looks."""

import math

import numpy as np
import pytest

from pipeline.watch.e_detector import Component, Detector, fresh, mean_increments, rate_increments, updated


def _increment_mean(design_effect: float, cluster: int, share: float, null: float) -> float:
    """E[L] for one cluster of trials that agree with one another, exactly."""
    (all_of_them,) = rate_increments(cluster, cluster, null, [0.5], design_effect)
    (none,) = rate_increments(cluster, 0, null, [0.5], design_effect)
    return share * math.exp(all_of_them) + (1 - share) * math.exp(none)


def test_an_increment_is_at_most_one_in_the_mean() -> None:
    """At the null's border exactly one for clusters of the design effect's size; below for smaller ones, and inside the null."""
    assert _increment_mean(6, 6, 0.7, 0.7) == pytest.approx(1)
    assert _increment_mean(6, 1, 0.7, 0.7) < 1
    assert _increment_mean(6, 6, 0.8, 0.7) < 1 < _increment_mean(6, 6, 0.6, 0.7)


def test_a_shift_of_the_mean_is_one_in_the_mean() -> None:
    """E exp(shift / variance (x - shift / 2)) = 1 for a Gaussian of mean zero."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = [math.exp(mean_increments(0.3 * x, [0.2], 0.09)[0]) for x in nodes]
    assert float(weights @ values / weights.sum()) == pytest.approx(1)


def _first_alarm(rng: np.random.Generator, bound: float, share: float, most: int) -> float:
    """Time units until an alarm, with looks of half a unit; `most` if there is none."""
    detector = fresh(2)
    for look in range(2 * most):
        successes = float(rng.binomial(20, share))
        detector = updated(detector, rate_increments(20, successes, 0.7, [0.6, 0.5], 1), 0.5, look / 2)
        if detector.log_evidence >= math.log(bound):
            return (look + 1) / 2
    return float(most)


def test_the_mean_time_to_a_false_alarm() -> None:
    """At least 1 / alpha = 50, and not idle: alarms come. 100 runs cut at 300: a standard error of about 9 around 170 here; the
    chance to fall below 50 is under 1e-9."""
    rng = np.random.default_rng(1)
    times = [_first_alarm(rng, 50, 0.7, 300) for _ in range(100)]
    assert 50 < np.mean(times)
    assert min(times) < 300


def test_a_change_is_found_and_dated() -> None:
    """A fall to 0.5 at look 100 is found within a few looks, and its time is right within some. Seeded."""
    rng = np.random.default_rng(2)
    detector, look = fresh(2), 0
    while detector.log_evidence < math.log(1e5):
        successes = float(rng.binomial(20, 0.75 if look < 100 else 0.5))
        detector = updated(detector, rate_increments(20, successes, 0.7, [0.6, 0.5], 1), 1.0, look)
        look += 1
    assert 100 < look < 125
    assert 97 <= detector.since <= 103


def test_evidence_is_the_mean_of_the_components() -> None:
    detector = updated(fresh(2), [math.log(3), math.log(5)], 1.0, 0.0)
    assert detector.log_evidence == pytest.approx(math.log(4))
    assert Detector(detector.components[:1]).log_evidence == pytest.approx(math.log(3))


def test_a_look_without_time_adds_nothing() -> None:
    """The weight is the time that passed."""
    assert updated(fresh(1), [0.0], 0.0, 0.0).log_evidence < -1e100


def test_the_time_of_a_change_is_that_of_the_most_evidence() -> None:
    """Not of the largest sum since a minimum."""
    assert 10.0 == Detector((Component(1.0, 0.5, 10.0), Component(0.5, 2.0, 20.0))).since
