"""What an examination could have proved: the formula against simulation, and where there is nothing to say."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.judgement.power import Power, power_of

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
    exact = SPREAD / PROMPTS**0.5
    known = power_of(replace(found, low=found.value - 1.984 * exact, error=exact), -MARGIN, 0.95)
    assert known is not None
    return known


def passing(prompts: int, gain: float) -> float:
    rng = np.random.default_rng(1)
    return float(np.mean([draw(rng, prompts, gain).low > -MARGIN for _ in range(DRAWS)]))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_stated_gains_pass_and_fail_as_often_as_stated(power: Power, level: float) -> None:
    """Tolerance: 4.5 standard errors of the simulation (chance of a false alarm below 1e-5), and 1 point for the skewness
    correction, which is not exactly 0 in a draw."""
    tolerance = 4.5 * (level * (1 - level) / DRAWS) ** 0.5 + 0.01
    assert abs(passing(PROMPTS, power.passes[str(level)]) - level) < tolerance
    assert abs(1 - passing(PROMPTS, power.refused[str(level)]) - level) < tolerance


def test_stated_prompts_are_enough(power: Power) -> None:
    """With the stated number of prompts an equal draft passes with 95%, and it passes with the stated probability now."""
    needed = power.prompts_needed["0.95"]
    assert needed is not None
    assert power.equal_passes is not None
    assert abs(passing(needed, 0.0) - 0.95) < 4.5 * (0.95 * 0.05 / DRAWS) ** 0.5 + 0.01
    assert abs(passing(PROMPTS, 0.0) - power.equal_passes) < 4.5 * (0.25 / DRAWS) ** 0.5 + 0.01
    assert power.prompts_needed["0.8"] < needed


def test_a_threshold_that_is_no_margin_needs_a_gain() -> None:
    """A rule about a gain states what passes; an equal draft does not pass it."""
    found = power_of(draw(np.random.default_rng(0), PROMPTS, 0.1), 0.0, 0.95)
    assert found is not None
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
    found = Interval(0.0, -2.0, 2.0, 100, 1.0, 99)
    power = power_of(found, -1e-6, 0.95)
    assert power is not None
    assert {"0.8": None, "0.95": None} == power.prompts_needed
