"""The trials of learning rates: each from the same draft, finished ones once, in the log."""

from pathlib import Path

import pytest
import torch

from pipeline.config.distill import DistillConfig
from pipeline.distillation.rate_trials import find_rate
from pipeline.distillation.training_log import OMEGA, PEAK, RATE, TRIAL, Log, best, examinations
from tests.fakes import quiet, tiny_llama

SETTINGS = DistillConfig(max_steps=400)


class _Training:
    """The draft is the better the nearer its rate is to 4e-3; a high one ruins it."""

    def __init__(self, stop_after: int = 99) -> None:
        self.model, self.begun, self.tried = tiny_llama(51, layers=1, dtype=torch.float32), list[float](), list[float]()
        self._left = stop_after

    def __call__(self, settings: DistillConfig, place: Path) -> Log:
        weight = self.model.lm_head.weight
        self.begun.append(float(weight.detach().double().sum()))
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        rate = settings.peak_rate
        self.tried.append(rate)
        place.mkdir(parents=True)
        (place / "best-0.safetensors").touch()
        with torch.no_grad():
            weight += rate if rate < 0.1 else torch.nan
        omega = max(0.0, 2.0 - abs(rate - 4e-3)) if rate < 0.1 else 0.0
        return [{"step": 0, RATE: 0.5, OMEGA: 1.9}, {"step": settings.max_steps, RATE: omega / 4, OMEGA: omega}]


def test_each_trial_begins_with_the_same_draft_and_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are the last ones, not those of its best step, and its files are gone."""
    training = _Training()
    rate, log = find_rate(training.model, SETTINGS, 125, training, tmp_path, quiet())
    assert [4e-3, 0.016, 1e-3, 2e-3] == training.tried
    assert 8e-3 == rate  # twice the best
    after = float(training.model.lm_head.weight.detach().double().sum())
    assert {after} == set(training.begun)
    assert training.tried == [entry[TRIAL] for entry in log[:-1]]
    assert {"step": 0, PEAK: 8e-3} == log[-1]
    assert [{TRIAL: 4e-3, "step": 10, RATE: 0.5, OMEGA: 2.0}] == log[:1]
    assert {"trials.json", "begin"} == {path.name for path in tmp_path.iterdir()}
    assert (
        "learning rate 0.008, twice the best of trials by tokens per target call on dev prompts after 10 steps (0.004: 2.000, "
        in (capsys.readouterr().err)
    )


def test_finished_trials_are_not_made_again(tmp_path: Path) -> None:
    killed = _Training(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        find_rate(killed.model, SETTINGS, 125, killed, tmp_path, quiet())
    again = _Training()
    found = find_rate(again.model, SETTINGS, 125, again, tmp_path, quiet())
    assert [1e-3, 2e-3] == again.tried
    whole = _Training()
    assert found == find_rate(whole.model, SETTINGS, 125, whole, tmp_path / "other", quiet())
    third = _Training(stop_after=0)
    assert found == find_rate(third.model, SETTINGS, 125, third, tmp_path, quiet())


def test_a_trial_that_diverges_is_a_result(tmp_path: Path) -> None:
    training = _Training()
    rate, log = find_rate(training.model, SETTINGS, 10, training, tmp_path, quiet())
    assert [0.05, 0.2, 0.0125, 0.00313] == training.tried
    assert 0.00626 == rate
    assert {TRIAL: 0.2, "step": 10} == log[1]


def test_trials_are_no_examinations_of_the_draft() -> None:
    own = {"step": 0, RATE: 0.5, OMEGA: 1.9}
    log = [{TRIAL: 4e-3, "step": 10, RATE: 0.9, OMEGA: 3.0}, own]
    assert [own] == examinations(log)
    assert own == best(log)


def test_too_short_a_training_says_that_nothing_was_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = _Training()
    few = DistillConfig(max_steps=60)
    assert (1e-3, [{"step": 0, PEAK: 1e-3}]) == find_rate(training.model, few, 125, training, tmp_path, quiet())
    assert [] == training.tried
    assert "which was not tried: below 200 steps (distill.max_steps)" in capsys.readouterr().err
