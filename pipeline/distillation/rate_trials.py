"""Runs the trials of `distill.learning_rate: auto` before a training, each from the draft that it begins with."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.config.distill import DistillConfig
from pipeline.distillation.checkpoints import read_model, write_model
from pipeline.distillation.processes import from_first, is_first, wait_for_all
from pipeline.distillation.rate_search import RateTrial, chosen_rate, first_rate, most_trials, next_rate, trial_settings
from pipeline.distillation.training_log import OMEGA, PEAK, RATE, Log, trial_entry
from pipeline.progress import Progress
from pipeline.store.files import write_json
from pipeline.store.own_files import reads_own_files
from pipeline.store.parsing import format_of, stored

_TRIALS, _BEGIN = "trials.json", "begin"


@reads_own_files("of the training that goes on")
@stored(name="trials of learning rates", kw_only=False)
class _Finished:
    """The finished trials of one training, in order."""

    trials: list[RateTrial]


def find_rate(
    model: Any,
    settings: DistillConfig,
    hidden: int,
    train: Callable[[DistillConfig, Path], Log],
    work: Path,
    progress: Progress,
) -> tuple[float, Log]:
    """The peak rate, and the log: an entry for each trial, and one with the rate. `train`: trains `model` in place; it has the
    weights that it came with afterwards. A finished trial is read from `work`."""
    first, most = first_rate(settings, hidden), most_trials(settings)
    trials = from_first(lambda: _read(work))
    finished = len(trials)
    if next_rate(trials, first, most) is not None:
        write_model(model, work / _BEGIN)
        wait_for_all()
    while (rate := next_rate(trials, first, most)) is not None:
        progress.line(f"distill: trial {len(trials) + 1} of at most {most}, learning rate {rate:g}")
        place = work / "trial"
        trials = [*trials, _trial(rate, train(trial_settings(settings, rate), place))]
        read_model(model, work / _BEGIN)
        if is_first():
            write_json(work / _TRIALS, asdict(_Finished(trials)))
            shutil.rmtree(place, ignore_errors=True)
        wait_for_all()
    rate = chosen_rate(trials, first)
    if len(trials) > finished or not trials:
        progress.line(f"distill: learning rate {rate:g}, {_why(trials)}")
    entries = [trial_entry(trial.rate, trial.steps, trial.acceptance, trial.omega) for trial in trials]
    return rate, [*entries, {"step": 0, PEAK: rate}]


def _trial(rate: float, log: Log) -> RateTrial:
    examined = sorted((entry for entry in log if OMEGA in entry), key=lambda entry: int(entry["step"]))
    before, last = examined[0], examined[-1]
    acceptance, omega = (last[RATE], last[OMEGA]) if last[OMEGA] else (None, None)
    return RateTrial(rate, last["step"], acceptance, omega, before[OMEGA] if before["step"] == 0 else None)


def _why(trials: Sequence[RateTrial]) -> str:
    if not trials:
        return "which was not tried: below 200 steps (distill.max_steps) there are no trials"
    parts = (f"{trial.rate:g}: {'diverged' if trial.omega is None else f'{trial.omega:.3f}'}" for trial in trials)
    before = next((trial.before for trial in trials if trial.before is not None), None)
    after = f"after {trials[0].steps} steps ({', '.join(parts)}{'' if before is None else f'; before: {before:.3f}'})"
    if not any(trial.score for trial in trials):
        return f"a quarter of the lowest of {len(trials)} trials, which all ruined the draft, by tokens per target call {after}"
    how = (
        "twice the best of trials"
        if all(trial.score for trial in trials)
        else "by the best of trials, not near one that ruined the draft,"
    )
    return f"{how} by tokens per target call on dev prompts {after}"


def _read(work: Path) -> list[RateTrial]:
    finished = format_of(_Finished).find(work / _TRIALS)
    return [] if finished is None else finished.trials
