"""Which peak learning rates are tried for `distill.learning_rate: auto`, and which is taken. Pure; no torch.

A trial is a short training of the same draft on the same rows. Half of its steps are warm-up: with the usual share the few steps
at low rates decide, and too low a rate wins. Scores are tokens per target call on dev prompts, as of checkpoints.
"""

from collections.abc import Sequence
from math import log2

from pipeline.config.distill import DistillConfig
from pipeline.store.parsing import Count, Number, stored

_MOST, _SHARE = 4, 40  # trials, each of a fortieth of the steps: a tenth of them together
_LEAST = 10  # steps of a trial: after 5, AdamW is best at a third of the rate that is best after 200
_WARM_UP = 0.5  # of a trial's steps
_SIZED = 0.5  # the first rate times the hidden size: 4e-3 for a draft of a million parameters, 6e-4 for 500 million
_LORA = 2.5  # times that for adapters (measured: ten times ruins a small draft)
# Doublings from the best trial to the training: with 20 times the steps the best rate is so much higher (measured).
_LONGER = 1
_APART = 2  # doublings from one rate to the next; one at last
_RUINED = (
    0.75  # of the accepted tokens per target call before a trial: with fewer after it, its rate has ruined the draft
)
_BELOW = 0.25  # of a rate that ruined the draft: the highest that a training takes, unless a trial was best above


@stored(kw_only=False)
class RateTrial:
    """Figures of dev prompts after a short training; None where it diverged."""

    rate: Number
    steps: Count
    acceptance: Number | None
    omega: Number | None  # tokens per target call
    before: Number | None = None  # those of the draft that the trial began with

    @property
    def score(self) -> float:
        """0 where it diverged or ruined the draft. A few steps may leave a good draft a little worse."""
        ruined = self.omega is None or (self.before is not None and self.omega - 1 < _RUINED * (self.before - 1))
        return 0.0 if ruined or self.omega is None else self.omega


def most_trials(settings: DistillConfig) -> int:
    """The most trials: at most 4, whose steps are at most a tenth of the training's; none where that would be one, and where the
    rate is given."""
    most = min(_MOST, settings.max_steps // (10 * _LEAST))
    return most if most > 1 and settings.learning_rate == "auto" else 0


def trial_steps(settings: DistillConfig) -> int:
    """The most steps of all trials together."""
    return most_trials(settings) * _steps(settings)


def _steps(settings: DistillConfig) -> int:
    return max(_LEAST, settings.max_steps // _SHARE)


def trial_settings(settings: DistillConfig, rate: float) -> DistillConfig:
    """The settings of one trial, examined at its end. No checkpoint, so a killed one begins again."""
    steps = _steps(settings)
    return settings.model_copy(
        update={
            "learning_rate": rate,
            "max_steps": steps,
            "warmup_share": _WARM_UP,
            "evaluate_every": steps,
            "save_every": steps + 1,
        }
    )


def first_rate(settings: DistillConfig, hidden: int) -> float:
    """The rate at which the search begins, for a draft of `hidden` size."""
    return float(f"{_SIZED / hidden * (_LORA if settings.lora else 1.0):.1e}")


def next_rate(trials: Sequence[RateTrial], first: float, most: int) -> float | None:
    """The rate of the next trial; None after `most`. By factors of 4 upwards from the first, downwards where that is worse,
    until the best rate is between two others; then by 2 towards the better of them. Downwards where all have ruined the draft."""
    if len(trials) >= most:
        return None
    if not trials:
        return first
    scores = {_doublings(trial.rate, first): trial.score for trial in trials}
    if any(place % _APART for place in scores):
        return None
    best = _doublings(_best(trials).rate, first)
    if not scores[best]:
        return _doubled(first, min(scores) - _APART)
    for place in (best + _APART, best - _APART):
        if place not in scores:
            return _doubled(first, place)
    return _doubled(first, best + (1 if scores[best + _APART] > scores[best - _APART] else -1))


def chosen_rate(trials: Sequence[RateTrial], first: float) -> float:
    """The rate of the training: twice the best trial's, though not near one that ruined the draft. A quarter of the lowest where
    all did, and of `first` without trials."""
    if not trials:
        return _doubled(first, -_APART)
    best = _best(trials)
    if not best.score:
        return _doubled(min(trial.rate for trial in trials), -_APART)
    above = [trial.rate for trial in trials if not trial.score and trial.rate > best.rate]
    return max(best.rate, min([_doubled(best.rate, _LONGER), *(_BELOW * rate for rate in above)]))


def _best(trials: Sequence[RateTrial]) -> RateTrial:
    """The trial with the most tokens per target call, the lower rate of equal ones."""
    return min(trials, key=lambda trial: (-trial.score, trial.rate))


def _doublings(rate: float, first: float) -> int:
    return round(log2(rate / first))


def _doubled(rate: float, times: int) -> float:
    """Three digits."""
    return float(f"{rate * 2.0**times:.3g}")
