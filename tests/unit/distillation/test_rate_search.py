"""Which learning rates are tried, and which is taken."""

from collections.abc import Callable
from math import log2

import pytest

from pipeline.config.distill import DistillConfig, LoraConfig
from pipeline.distillation.rate_search import (
    RateTrial,
    chosen_rate,
    first_rate,
    most_trials,
    next_rate,
    trial_settings,
    trial_steps,
)

AUTO = DistillConfig()


def _search(score: Callable[[float], float | None], most: int = 4, first: float = 1e-3) -> list[RateTrial]:
    trials: list[RateTrial] = []
    while (rate := next_rate(trials, first, most)) is not None:
        trials.append(RateTrial(rate, 10, 0.5, score(rate)))
    return trials


def _peak(at: float) -> Callable[[float], float]:
    return lambda rate: 3.0 - abs(log2(rate / at)) / 10


@pytest.mark.parametrize(
    ("at", "tried"),
    [
        (1e-3, [1e-3, 4e-3, 2.5e-4, 5e-4]),  # both neighbours are equal: the lower half
        (3e-3, [1e-3, 4e-3, 0.016, 2e-3]),
        (0.016, [1e-3, 4e-3, 0.016, 0.064]),
        (2e-5, [1e-3, 4e-3, 2.5e-4, 6.25e-5]),
    ],
)
def test_rates_are_tried_by_factors_of_four_and_then_of_two(at: float, tried: list[float]) -> None:
    found = _search(_peak(at))
    assert tried == [one.rate for one in found]
    assert chosen_rate(found, 1e-3) == 2 * min(tried, key=lambda rate: abs(log2(rate / at)))


@pytest.mark.parametrize("at", [1e-5, 1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.05])
def test_more_trials_end_at_most_a_factor_of_two_away(at: float) -> None:
    found = _search(_peak(at), most=9)
    assert len(found) < 9
    assert abs(log2(chosen_rate(found, 1e-3) / 2 / at)) <= 1


def test_a_trial_that_diverges_is_worse_than_any() -> None:
    """Where all do, the rate is below all."""
    found = _search(lambda rate: None if rate > 3e-4 else _peak(1.9e-4)(rate))
    assert [1e-3, 2.5e-4, 6.25e-5, 1.25e-4] == [one.rate for one in found]
    assert found[0].omega is None
    assert 2.5e-4 == chosen_rate(found, 1e-3)  # the best of the trials: twice that is near the one that diverged
    assert 3.9e-6 == chosen_rate(_search(lambda rate: None), 1e-3)


def test_a_rate_that_ruins_the_draft_is_not_the_best_of_bad_ones() -> None:
    """Adapters of a small draft at ten times the rate of a whole one: 1.976 tokens per target call before, 1.368 and 1.343 after
    trials, and no better than before after the training. What a few steps cost a good draft is no ruin."""
    ruined = [RateTrial(0.039, 10, 0.275, 1.368, 1.976)]
    assert 9.75e-3 == next_rate(ruined, 0.039, 2)
    assert 9.75e-3 == chosen_rate([*ruined, RateTrial(9.75e-3, 10, 0.55, 2.1, 1.976)], 0.039)
    assert 2.44e-3 == chosen_rate([*ruined, RateTrial(9.75e-3, 10, 0.4, 1.5, 1.976)], 0.039)
    good = [RateTrial(1e-3, 10, 0.87, 4.0, 4.1), RateTrial(4e-3, 10, 0.85, 3.8, 4.1)]
    assert 2e-3 == chosen_rate(good, 1e-3)


@pytest.mark.parametrize(
    ("steps", "trials", "each"), [(20, 0, 10), (199, 0, 10), (200, 2, 10), (399, 3, 10), (400, 4, 10), (3000, 4, 75)]
)
def test_trials_have_a_tenth_of_the_steps_at_most(steps: int, trials: int, each: int) -> None:
    settings = DistillConfig(max_steps=steps)
    assert trials == most_trials(settings)
    assert trials * each == trial_steps(settings) <= steps / 10
    assert 0 == trial_steps(DistillConfig(max_steps=steps, learning_rate=1e-3))
    found = trial_settings(settings, 0.25)
    assert (each, 0.25, 0.5) == (found.max_steps, found.learning_rate, found.warmup_share)
    assert found.max_steps == found.evaluate_every < found.save_every


def test_the_search_begins_lower_for_larger_drafts_and_higher_for_adapters() -> None:
    assert (3.9e-3, 5.6e-4) == (first_rate(AUTO, 128), first_rate(AUTO, 896))
    assert 1.4e-3 == first_rate(DistillConfig(lora=LoraConfig()), 896)
    assert 1.4e-4 == chosen_rate([], first_rate(AUTO, 896))  # where nothing is tried, the cautious one
