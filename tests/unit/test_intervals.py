"""Intervals of ratios by prompt: textbook cases, strata, pairs, and coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.acceptance.intervals import Interval, RatioSums, ratio_gain


def ratio_interval(x: np.ndarray, y: np.ndarray, strata: list[str], confidence: float) -> Interval:
    """One ratio, all prompts in one block."""
    sums = RatioSums(1)
    sums.add(x.reshape(-1, 1), y.reshape(-1, 1), strata)
    return sums.interval(0, confidence)


def test_a_mean_has_student_t_bounds() -> None:
    """With denominators of 1 the ratio is a mean with textbook bounds."""
    values = np.random.default_rng(1).normal(3, 2, 12)
    low, high = stats.t.interval(0.9, 11, values.mean(), stats.sem(values))
    found = ratio_interval(values, np.ones(12), ["a"] * 12, 0.9)

    assert (12, pytest.approx(values.mean())) == (found.prompts, found.value)
    assert (pytest.approx(low), pytest.approx(high)) == (found.low, found.high)


def test_a_ratio_has_the_variance_of_its_residuals() -> None:
    """Cochran's linearised variance, written out."""
    x, y = np.array([1.0, 4.0, 2.0, 7.0]), np.array([2.0, 5.0, 6.0, 8.0])
    residuals = x - x.sum() / y.sum() * y
    half = stats.t.ppf(0.975, 3) * math.sqrt(4 * residuals.var(ddof=1)) / y.sum()
    found = ratio_interval(x, y, ["a"] * 4, 0.95)

    assert (pytest.approx(14 / 21), pytest.approx(half)) == (found.value, found.high - found.value)


def test_differences_between_domains_do_not_widen_the_interval() -> None:
    """Stratified: only the variance within domains counts, with one degree of freedom less per domain."""
    values = np.array([1.0, 1.2, 0.8, 9.0, 9.4, 8.6])
    strata = ["a", "a", "a", "b", "b", "b"]
    spread = sum(3 * values[part].var(ddof=1) for part in (slice(0, 3), slice(3, 6)))
    found = ratio_interval(values, np.ones(6), strata, 0.95)

    assert stats.t.ppf(0.975, 4) * math.sqrt(spread) / 6 == pytest.approx(found.high - found.value)


def test_identical_drafts_differ_by_exactly_nothing() -> None:
    """Paired by prompt, a draft against itself has a gain of 0 and bounds of 0."""
    generator = np.random.default_rng(2)
    x, y = generator.random(9), generator.random(9) + 1

    assert Interval(0.0, 0.0, 0.0, 9) == ratio_gain(x, y, x, y, ["a"] * 9, 0.95)


def test_a_pair_is_narrower_than_its_parts() -> None:
    """If two drafts are correlated over prompts, their difference has a narrower interval than either rate."""
    generator = np.random.default_rng(3)
    x = generator.random(30)
    base = x - 0.1 + generator.normal(0, 0.01, 30)
    gain = ratio_gain(x, np.ones(30), base, np.ones(30), ["a"] * 30, 0.95)
    alone = ratio_interval(x, np.ones(30), ["a"] * 30, 0.95)

    assert x.mean() - base.mean() == pytest.approx(gain.value)
    assert (alone.high - alone.low) / 10 > gain.high - gain.low
    low, high = stats.t.interval(0.95, 29, (x - base).mean(), stats.sem(x - base))
    assert (pytest.approx(low), pytest.approx(high)) == (gain.low, gain.high)


def test_bounds_cover_the_truth_as_often_as_they_say() -> None:
    """1,500 draws of 2 domains with 10 prompts of unequal length: coverage is within 0.03 of 0.95 (5.3 sigma; false alarm
    1.2e-7 for a new seed)."""
    generator, covered, repeats = np.random.default_rng(4), 0, 1500
    strata = ["a"] * 10 + ["b"] * 10
    for _ in range(repeats):
        lengths = generator.integers(50, 150, 20).astype(float)
        rates = np.repeat([0.6, 0.8], 10) + generator.uniform(-0.15, 0.15, 20)
        found = ratio_interval(rates * lengths, lengths, strata, 0.95)
        covered += found.low <= 0.7 <= found.high

    assert 0.95 == pytest.approx(covered / repeats, abs=0.03)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_prompts_added_block_by_block_give_the_interval_of_all_at_once(block: int) -> None:
    """Two ratios over 300 prompts of three domains, far from 0: any blocks give the whole-array formula to 1e-9 of the
    width, also within a domain."""
    generator = np.random.default_rng(6)
    y = generator.integers(5, 300, (300, 2)).astype(float)
    x = y * generator.uniform(0.5, 0.9, (300, 2)) + 1e4
    strata = [f"d{n}" for n in generator.integers(0, 3, 300)]
    sums = RatioSums(2)
    for begin in range(0, 300, block):
        part = slice(begin, begin + block)
        sums.add(x[part], y[part], strata[part])

    for ratio in range(2):
        for domain in (None, "d1"):
            kept = np.array([domain in (None, label) for label in strata])
            own = [label for label in strata if domain in (None, label)]
            nothing = np.zeros(kept.sum()), np.ones(kept.sum())
            whole = ratio_gain(x[kept, ratio], y[kept, ratio], *nothing, own, 0.95)
            found = sums.interval(ratio, 0.95, domain)
            assert (len(own), pytest.approx(whole.value, rel=1e-12)) == (found.prompts, found.value)
            assert whole.high - whole.low == pytest.approx(found.high - found.low, rel=1e-9)
            assert y[kept, ratio].sum() == sums.denominator(ratio, domain)


def test_an_absent_prompt_is_no_unit_of_a_ratio() -> None:
    """Prompts that are not present for a ratio do not change its interval, for any blocks."""
    generator = np.random.default_rng(7)
    x, y, present = generator.random((40, 1)), generator.random((40, 1)) + 1, generator.random((40, 1)) < 0.4
    sums = RatioSums(1)
    for begin in range(0, 40, 9):
        part = slice(begin, begin + 9)
        sums.add(x[part], y[part], ["a"] * len(x[part]), present[part])
    kept = present[:, 0]
    expected = ratio_interval(x[kept, 0], y[kept, 0], ["a"] * int(kept.sum()), 0.9)
    found = sums.interval(0, 0.9)

    assert (expected.prompts, pytest.approx(expected.value)) == (found.prompts, found.value)
    assert (pytest.approx(expected.low), pytest.approx(expected.high)) == (found.low, found.high)


@pytest.mark.parametrize("strata", [["a"], ["a", "b"], ["a", "a", "b"]])
def test_a_domain_of_one_prompt_leaves_the_spread_unknown(strata: list[str]) -> None:
    """The bounds are infinite, not narrow."""
    found = ratio_interval(np.arange(len(strata)) + 1.0, np.full(len(strata), 9.0), strata, 0.95)

    assert (-math.inf, math.inf) == (found.low, found.high)


@pytest.mark.parametrize(
    ("x", "y", "strata"),
    [
        ([], [], []),
        ([1.0, math.nan], [1.0, 1.0], ["a", "a"]),
        ([1.0, 1.0], [1.0, math.inf], ["a", "a"]),
        ([1.0, 1.0], [0.0, 0.0], ["a", "a"]),
        ([1.0, 1.0], [1.0], ["a", "a"]),
        ([1.0, 1.0], [1.0, 1.0], ["a"]),
    ],
)
def test_figures_over_nothing_or_nan_are_errors(x: list[float], y: list[float], strata: list[str]) -> None:
    """Empty, unequal, infinite or NaN input raises, alone and on either side of a pair."""
    with pytest.raises(ValueError, match="figure"):
        ratio_interval(np.array(x), np.array(y), strata, 0.95)
    with pytest.raises(ValueError, match="figure"):
        ratio_gain(np.ones(len(strata)), np.ones(len(strata)), np.array(x), np.array(y), strata, 0.95)
