"""Intervals of ratios by prompt: textbook cases, strata, pairs, and coverage."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from pipeline.acceptance.intervals import Interval, StratumMoments, interval, pooled, ratio_gain
from pipeline.acceptance.ratio_sums import RatioSums


def ratio_interval(x: np.ndarray, y: np.ndarray, strata: list[str], confidence: float) -> Interval:
    """One ratio, all prompts in one block."""
    sums = RatioSums(1)
    sums.add(x.reshape(-1, 1), y.reshape(-1, 1), strata)
    return sums.interval(0, confidence)


def test_a_symmetric_mean_has_student_t_bounds() -> None:
    """With denominators of 1 and no skewness the ratio is a mean with textbook bounds."""
    half = np.random.default_rng(1).normal(0, 2, 6)
    values = 3 + np.concatenate([half, -half])
    low, high = stats.t.interval(0.9, 11, values.mean(), stats.sem(values))
    found = ratio_interval(values, np.ones(12), ["a"] * 12, 0.9)

    assert (12, pytest.approx(values.mean())) == (found.prompts, found.value)
    assert (pytest.approx(low), pytest.approx(high)) == (found.low, found.high)


def test_a_skewed_mean_has_halls_bound_on_the_long_side() -> None:
    """Hall's transformation, solved by a root finder, on the side that is too short by Student's t; Student's t on the other."""
    values = np.random.default_rng(5).exponential(1, 30)
    error = stats.sem(values)
    skewness = 30 / 29 / 28 * ((values - values.mean()) ** 3).sum() / values.std(ddof=1) ** 3 / math.sqrt(30)
    quantile = stats.t.ppf(0.975, 29)

    def hall(t: float) -> float:
        return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6 + quantile

    found = ratio_interval(values, np.ones(30), ["a"] * 30, 0.95)

    assert pytest.approx(values.mean() - quantile * error) == found.low
    assert pytest.approx(values.mean() - brentq(hall, -20, 0) * error) == found.high
    assert found.high - found.value > found.value - found.low


def test_unequal_prompts_count_as_kish_says() -> None:
    """Cochran's linearised variance with Kish's effective number of prompts, written out for 40 symmetric residuals."""
    y = np.tile([10.0, 30.0], 20)
    residuals = np.repeat([1.0, -1.0], 20) * np.linspace(1, 2, 20)[np.r_[:20, :20]]
    kish = y.sum() ** 2 / (y**2).sum()
    half = stats.t.ppf(0.975, kish - 1) * math.sqrt(kish / (kish - 1) * (residuals**2).sum()) / y.sum()
    found = ratio_interval(0.5 * y + residuals, y, ["a"] * 40, 0.95)

    assert 32 == pytest.approx(kish)
    assert (0.5, pytest.approx(half)) == (pytest.approx(found.value), found.high - found.value)


def test_below_twenty_effective_prompts_the_degrees_of_freedom_are_satterthwaites() -> None:
    """Ten prompts of 30 tokens and ten of 10: 16 effective prompts, 11.2 degrees of freedom."""
    y = np.tile([10.0, 30.0], 10)
    residuals = np.repeat([1.0, -1.0], 10) * np.linspace(1, 2, 10)[np.r_[:10, :10]]
    dof = (y**2).sum() ** 2 / (y**4).sum() - 1
    half = stats.t.ppf(0.975, dof) * math.sqrt(16 / 15 * (residuals**2).sum()) / y.sum()
    found = ratio_interval(0.5 * y + residuals, y, ["a"] * 20, 0.95)

    assert (11.2, pytest.approx(half)) == (pytest.approx(dof, abs=0.05), found.high - found.value)


@pytest.mark.parametrize(
    ("each", "expected"), [(10, 130**2 / 970 - 1), (11, 55**2 / 143 - 1)], ids=["19.2 effective", "21.2 effective"]
)
def test_the_degrees_of_freedom_change_at_twenty_effective_prompts(each: int, expected: float) -> None:
    """As many prompts of 3 tokens as of 2: Satterthwaite's below, those of the effective number from there on."""
    sums = tuple(float(each * (3**power + 2**power)) for power in (1, 2, 4))
    stratum = StratumMoments(units=2 * each, squares=1.0, cubes=0.0, weights=sums)

    assert pytest.approx(expected) == stratum.degrees_of_freedom


def test_two_long_prompts_among_many_short_ones_give_no_interval() -> None:
    """100 prompts of 16 tokens and 2 of 1,000: two prompts decide, and nothing is known of their spread."""
    y = np.array([16.0] * 100 + [1000.0] * 2)
    rates = np.random.default_rng(9).uniform(0.5, 0.9, 102)

    for strata in (["a"] * 102, ["a"] * 100 + ["b"] * 2):
        found = ratio_interval(rates * y, y, strata, 0.95)
        assert (-math.inf, math.inf) == (found.low, found.high)
        gain = ratio_gain(rates * y, y, rates**2 * y, y, strata, 0.95)
        assert (-math.inf, math.inf) == (gain.low, gain.high)


def test_differences_between_domains_do_not_widen_the_interval() -> None:
    """Stratified: only the variance within domains counts. Two domains of one size and variance add degrees of freedom."""
    values = np.array([1.0, 1.2, 0.8, 1.1, 0.9, 9.0, 9.2, 8.8, 9.1, 8.9])
    strata = ["a"] * 5 + ["b"] * 5
    spread = sum(5 * values[part].var(ddof=1) for part in (slice(0, 5), slice(5, 10)))
    found = ratio_interval(values, np.ones(10), strata, 0.95)

    assert stats.t.ppf(0.975, 8) * math.sqrt(spread) / 10 == pytest.approx(found.high - found.value)


def test_identical_drafts_differ_by_exactly_nothing() -> None:
    """Paired by prompt, a draft against itself has a gain of 0 and bounds of 0."""
    generator = np.random.default_rng(2)
    x, y = generator.random(9), generator.random(9) + 1

    assert Interval(0.0, 0.0, 0.0, 9) == ratio_gain(x, y, x, y, ["a"] * 9, 0.95)
    assert Interval(0.0, 0.0, 0.0, 2) == ratio_gain(x[:2], y[:2], x[:2], y[:2], ["a", "b"], 0.95)


def test_a_pair_is_narrower_than_its_parts() -> None:
    """If two drafts are correlated over prompts, their difference has a narrower interval than either rate."""
    generator = np.random.default_rng(3)
    x = generator.random(30)
    base = x - 0.1 + generator.normal(0, 0.01, 30)
    gain = ratio_gain(x, np.ones(30), base, np.ones(30), ["a"] * 30, 0.95)
    alone = ratio_interval(x, np.ones(30), ["a"] * 30, 0.95)

    assert x.mean() - base.mean() == pytest.approx(gain.value)
    assert (alone.high - alone.low) / 10 > gain.high - gain.low
    whole = ratio_interval(x - base, np.ones(30), ["a"] * 30, 0.95)
    assert (pytest.approx(whole.low), pytest.approx(whole.high)) == (gain.low, gain.high)


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


@pytest.mark.parametrize("block", [1, 5, 12])
def test_a_few_unequal_prompts_added_block_by_block_give_the_interval_of_all_at_once(block: int) -> None:
    """Below 20 effective prompts the bounds depend on the fourth powers of the lengths too."""
    generator = np.random.default_rng(8)
    y = generator.integers(20, 60, 12).astype(float)
    x = y * generator.uniform(0.5, 0.9, 12)
    sums = RatioSums(1)
    for begin in range(0, 12, block):
        part = slice(begin, begin + block)
        sums.add(x[part].reshape(-1, 1), y[part].reshape(-1, 1), ["a"] * len(x[part]))
    whole = ratio_gain(x, y, np.zeros(12), np.ones(12), ["a"] * 12, 0.95)
    found = sums.interval(0, 0.95)

    assert math.isfinite(whole.low)
    assert (pytest.approx(whole.low, rel=1e-9), pytest.approx(whole.high, rel=1e-9)) == (found.low, found.high)


@pytest.mark.parametrize(("longest", "known"), [(1.0, True), (1.2, False)])
def test_five_degrees_of_freedom_are_the_fewest(longest: float, known: bool) -> None:
    """Six prompts of one length have 5; where one of them is longer they have fewer, and no interval."""
    lengths = np.array([1.0] * 5 + [longest])
    sums = tuple(float((lengths**power).sum()) for power in (1, 2, 4))
    found = interval(0.5, [StratumMoments(units=6, squares=0.01, cubes=0.0, weights=sums)], 6, 0.95)

    assert (known, known) == (math.isfinite(found.low), math.isfinite(found.high))


def test_a_domain_that_does_not_vary_changes_no_bound() -> None:
    """However few prompts it counts for: here one of two has all the tokens."""
    varying = StratumMoments(units=30, squares=0.01, cubes=0.0, weights=(30.0, 30.0, 30.0))
    constant = StratumMoments(units=2, squares=0.0, cubes=0.0, weights=(9.0, 81.0, 6561.0))
    alone, both = interval(0.5, [varying], 30, 0.95), interval(0.5, [varying, constant], 32, 0.95)

    assert math.isfinite(alone.low)
    assert (alone.low, alone.high, 32) == (both.low, both.high, both.prompts)


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
def test_a_few_prompts_leave_the_spread_unknown(strata: list[str]) -> None:
    """The bounds are infinite, not narrow."""
    found = ratio_interval(np.arange(len(strata)) + 1.0, np.full(len(strata), 9.0), strata, 0.95)

    assert (-math.inf, math.inf) == (found.low, found.high)


def test_a_domain_of_one_prompt_is_pooled_with_the_smallest_other() -> None:
    """The whole keeps its interval, that of the pooled strata; the domain alone has none."""
    x = np.random.default_rng(8).random(31)
    strata = ["a"] * 20 + ["b"] * 10 + ["c"]
    sums = RatioSums(1)
    sums.add(x[:, None], np.ones((31, 1)), strata)
    pooled_strata = ["a"] * 20 + ["b"] * 11

    assert ratio_interval(x, np.ones(31), pooled_strata, 0.95) == sums.interval(0, 0.95)
    assert math.inf == sums.interval(0, 0.95, "c").high


def test_small_domains_are_one_stratum() -> None:
    """Those below 5 effective units are pooled with each other, and only if that is too small as well with the smallest other."""

    def equal(*units: int) -> list[tuple[float, float]]:
        return [(3.0 * count, 9.0 * count) for count in units]

    assert [[0], [3], [1, 2]] == pooled(equal(9, 4, 1, 8))
    assert [[0], [1, 2]] == pooled(equal(9, 5, 4))
    assert [[0, 2], [1]] == pooled(equal(6, 7, 4))
    assert [[0]] == pooled(equal(1))
    assert [[0, 1]] == pooled(equal(1, 2))
    # Ten prompts, of which one has nearly all the tokens: 1.2 effective units.
    assert [[0, 1]] == pooled([*equal(9), (109.0, 10_009.0)])


def test_a_small_domain_of_unequal_prompts_takes_no_interval_away() -> None:
    """Of 85 prompts 5 are of a second domain, and two of them have nearly all its tokens; by both ways of adding up. Before, no
    bound was known. Coverage of 0.95 with a third domain of 2 to 8 prompts: 0.952 to 0.975 in 2,000 samples of each size."""
    rng = np.random.default_rng(11)
    tokens = np.concatenate([rng.integers(50, 150, 80), [900, 1100, 5, 4, 6]]).astype(np.float64)
    accepted, base = tokens * rng.uniform(0.6, 0.8, 85), tokens * rng.uniform(0.5, 0.7, 85)
    strata = ["chat"] * 80 + ["tools"] * 5
    sums = RatioSums(1)
    sums.add(accepted[:, None], tokens[:, None], strata)
    one, gain = sums.interval(0, 0.95), ratio_gain(accepted, tokens, base, tokens, strata, 0.95)

    assert all(math.isfinite(bound) for bound in (one.low, one.high, gain.low, gain.high))
    assert pytest.approx(one.low) == ratio_interval(accepted, tokens, strata, 0.95).low
    assert math.inf == sums.interval(0, 0.95, "tools").high


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
