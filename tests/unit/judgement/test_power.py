"""What an examination could have proved: the formula against simulation, and where there is nothing to say."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.acceptance.intervals import Interval, ratio_gain, standard_errors
from pipeline.judgement.headline import NO_POWER, power_summary
from pipeline.judgement.power import pass_probability, power_of
from pipeline.judgement.rule_result import Power
from tests.decisions import make_decision

MARGIN, PROMPTS, SPREAD = 0.01, 100, 0.04
DRAWS = 2000


def draw(rng: np.random.Generator, prompts: int, gain: float) -> Interval:
    """The interval of a gain over prompts of 128 tokens in two domains."""
    tokens = np.full(prompts, 128.0)
    gains = gain + rng.normal(0, SPREAD, prompts)
    domains = ["code"] * (prompts // 2) + ["text"] * (prompts - prompts // 2)
    return ratio_gain((0.5 + gains) * tokens, tokens, 0.5 * tokens, tokens, domains, 0.95)


@pytest.fixture(scope="module")
def power() -> Power:
    """Of an examination whose standard error is exactly that of the simulated prompts."""
    found = draw(np.random.default_rng(0), PROMPTS, 0.0)
    return _power(_found(SPREAD / PROMPTS**0.5, dof=found.dof))


def _found(error: float, dof: float = PROMPTS - 1, skewness: float = 0.0, prompts: int = PROMPTS) -> Interval:
    """The interval of drafts with equal acceptance."""
    below, above = standard_errors(dof, skewness, 0.95)
    return Interval(0.0, -below * error, above * error, prompts, error, dof, skewness)


def _power(found: Interval, threshold: float = -MARGIN) -> Power:
    """Of an examination that has a standard error."""
    power = power_of(found, threshold, 0.95)
    assert power is not None
    return power


@functools.cache
def _lows(prompts: int) -> NDArray[np.float64]:
    """Lower bounds in all draws of a gain of 0."""
    rng = np.random.default_rng(1)
    return np.array([draw(rng, prompts, 0.0).low for _ in range(DRAWS)])


def passing(prompts: int, gain: float) -> float:
    """Share of the draws; a gain moves an interval and does not change its width."""
    assert draw(np.random.default_rng(1), prompts, gain).low == pytest.approx(_lows(prompts)[0] + gain)
    return float(np.mean(_lows(prompts) + gain > -MARGIN))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_stated_gains_pass_and_fail_as_often_as_stated(power: Power, level: float) -> None:
    """Tolerance: 4.5 standard errors of the simulation (chance of a false alarm below 1e-5), and 1 point for the skewness
    correction, which is not exactly 0 in a draw."""
    tolerance = 4.5 * (level * (1 - level) / DRAWS) ** 0.5 + 0.01
    assert abs(passing(PROMPTS, power.passes[str(level)]) - level) < tolerance
    assert abs(1 - passing(PROMPTS, power.refused[str(level)]) - level) < tolerance


def test_stated_prompts_are_enough(power: Power) -> None:
    """With the stated number of prompts an equal draft passes with at least 95%, and not with much more. Now it passes with the
    stated probability. Chance of a false alarm below 1e-5."""
    needed = power.prompts_needed["0.95"]
    assert needed is not None
    assert power.equal_passes is not None
    error = 4.5 * (0.95 * 0.05 / DRAWS) ** 0.5
    assert 0.95 - error < passing(needed, 0.0) < 0.98 + error
    assert abs(passing(PROMPTS, 0.0) - power.equal_passes) < 4.5 * (0.25 / DRAWS) ** 0.5 + 0.01
    assert PROMPTS < (power.prompts_needed["0.8"] or 0) < needed


def test_a_threshold_that_is_no_margin_needs_a_gain() -> None:
    """A rule about a gain states what passes; an equal draft does not pass it."""
    found = _power(draw(np.random.default_rng(0), PROMPTS, 0.1), 0.0)
    assert (None, {}) == (found.equal_passes, found.prompts_needed)
    assert 0 < found.passes["0.8"] < found.passes["0.95"]
    assert found.refused["0.95"] < found.refused["0.8"] < found.passes["0.8"]


@pytest.mark.parametrize(
    "found",
    [
        Interval(0.0, 0.0, 0.0, 40),  # drafts that do not differ
        Interval(0.1, float("-inf"), float("inf"), 3, 0.02, 2),  # too few prompts
        Interval(0.1, 0.1, 0.1, 40, 0.0, 39),
    ],
)
def test_nothing_is_stated_without_a_standard_error(found: Interval) -> None:
    """No figure is made up."""
    assert power_of(found, -MARGIN, 0.95) is None


def test_a_margin_that_no_examination_proves() -> None:
    """Ten million prompts are not asked for."""
    power = _power(Interval(0.0, -2.0, 2.0, 100, 1.0, 99), -1e-6)
    assert {"0.8": None, "0.95": None} == power.prompts_needed


def test_skewed_gains_pass_as_often_as_stated() -> None:
    """Exponential gains on 200 prompts, and losses, whose intervals are those of the gains mirrored: within 2 points, and the
    noncentral t alone is 3 points off. The standard error of the simulation is 0.5 points and the formula is 0.4 points off:
    chance of a false alarm below 1e-3 in a draw of other numbers."""
    rng, prompts, draws = np.random.default_rng(1), 200, 5000
    tokens, passed = np.full(prompts, 128.0), {1: 0, -1: 0}

    def drawn(gains: NDArray[np.float64]) -> Interval:
        return ratio_gain((0.5 + gains) * tokens, tokens, 0.5 * tokens, tokens, ["code"] * prompts, 0.95)

    for _ in range(draws):
        gains = SPREAD * (rng.exponential(1, prompts) - 1)
        found = drawn(gains)
        passed[1] += found.low > -MARGIN
        passed[-1] += -found.high > -MARGIN
    mirrored = drawn(-gains)
    assert (-found.high, -found.low) == pytest.approx((mirrored.low, mirrored.high))
    for sign, times in passed.items():
        error, skewness = SPREAD / prompts**0.5, 2 * sign / prompts**0.5
        stated = pass_probability(_found(error, prompts - 1, skewness, prompts), 0.0, -MARGIN)
        assert stated == pytest.approx(times / draws, abs=0.02)


def test_power_is_monotone() -> None:
    """A wider spread proves less and needs more prompts; a larger gain and a wider margin pass more often."""
    by_error = [_power(_found(error)) for error in (0.003, 0.004, 0.006, 0.01)]
    stated = [(p.passes["0.95"], -(p.equal_passes or 0), p.prompts_needed["0.95"] or 0) for p in by_error]
    by_gain = [pass_probability(_found(0.004), gain, -MARGIN) for gain in (-0.02, -MARGIN, 0.0, 0.01)]
    by_margin = [pass_probability(_found(0.004), 0.0, -margin) for margin in (0.005, 0.01, 0.02)]

    for column in zip(*stated, strict=True):
        assert sorted(set(column)) == list(column)
    assert sorted(set(by_gain)) == by_gain
    assert sorted(set(by_margin)) == by_margin
    assert by_gain[1] == pytest.approx(0.025)


def test_stated_gains_have_their_probability() -> None:
    """The gains are the inverse of the probability, for skewed estimates too."""
    for skewness in (-0.3, 0.0, 0.3):
        found = _found(0.004, skewness=skewness)
        power = _power(found)
        for level in (0.8, 0.95):
            assert level == pytest.approx(pass_probability(found, power.passes[str(level)], -MARGIN))
            assert 1 - level == pytest.approx(pass_probability(found, power.refused[str(level)], -MARGIN))


def test_an_examination_that_has_the_power_needs_no_more_prompts() -> None:
    """The stated number of prompts is never above the number that there is, if that one is enough."""
    enough, short = (_power(_found(error)) for error in (0.0027, 0.0029))
    assert 0.95 < (enough.equal_passes or 0) < 0.96
    assert PROMPTS == enough.prompts_needed["0.95"]
    assert PROMPTS < (short.prompts_needed["0.95"] or 0)


def test_what_is_needed_is_counted_in_conversations() -> None:
    """40 prompts of 20 conversations have the power of 20 prompts, and need as many units."""
    alone, turns = (_found(0.004, dof=19, prompts=prompts) for prompts in (20, 40))
    one, other = (_power(found) for found in (alone, replace(turns, conversations=20)))
    assert other == replace(one, prompts=40, conversations=20)


def test_a_margin_far_away_has_a_probability() -> None:
    """scipy's noncentral t is NaN at some points where the probability is 0 or 1."""
    found = [_found(MARGIN / shift, dof=136) for shift in np.arange(35, 41, 0.1)]
    assert [1.0] == sorted({pass_probability(one, 0.0, -MARGIN) for one in found})
    assert [0.0] == sorted({pass_probability(one, -2 * MARGIN, -MARGIN) for one in found})


@pytest.mark.parametrize("name", ["domain_margin:law", "segment_margin:tool_call", "length_margin:16-32"])
def test_a_decision_states_its_power_in_two_lines(name: str) -> None:
    """The gain, and the margin that needs the most prompts; without an interval there is a reason in place of figures."""
    many, few = make_decision(), make_decision(prompts=3)
    easy = next(rule for rule in many.rules if rule.name.startswith("domain_margin"))
    assert easy.power is not None
    power = replace(easy.power, prompts_needed={"0.8": 90, "0.95": 140})
    hard = replace(easy, name=name, power=power)
    gain, margin = power_summary(replace(many, rules=[*many.rules, hard]))

    assert gain.startswith(
        "min_gain: over 50 prompts a true gain of +0.33 points passes with 80% probability and +0.43 with 95%"
    )
    assert margin.startswith(f"{name}: over 50 prompts")
    assert margin.endswith(
        "would pass with 100% probability; for 80% the examination needs 90 prompts, and for 95% 140"
    )
    assert [f"min_gain: {NO_POWER}", f"domain_margin:code: {NO_POWER}"] == power_summary(few)
