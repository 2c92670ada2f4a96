"""The log of a training: entries of step with loss, or with an examination on dev prompts, both also by segment. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.distill import DistillConfig
from pipeline.examination.examiner import AcceptanceSummary

Log = list[dict[str, Any]]
Entries = Sequence[Mapping[str, Any]]
LOSS, RATE, OMEGA = "loss", "dev_acceptance_rate", "dev_tokens_per_target_call"
TRIAL = "trial_learning_rate"  # of an entry of a short training before, whose figures are of another draft
PEAK = "learning_rate"  # of the entry that states which peak rate the trials gave
_BY_SEGMENT = "_by_segment"
_KEPT = ("step", LOSS, LOSS + _BY_SEGMENT, RATE, RATE + _BY_SEGMENT, OMEGA)


def examination_entry(step: int, summary: AcceptanceSummary) -> dict[str, Any]:
    entry = {"step": step, RATE: summary.acceptance, OMEGA: summary.omega}
    return entry | ({RATE + _BY_SEGMENT: dict(summary.segments)} if summary.segments else {})


def add_losses(entry: dict[str, Any], by_segment: Mapping[str, float]) -> None:
    """Add the losses by segment to an entry with a loss; none where there is one segment."""
    if by_segment:
        entry[LOSS + _BY_SEGMENT] = dict(by_segment)


def note(summary: AcceptanceSummary) -> str:
    """An examination in a progress line."""
    parts = ", ".join(f"{name} {rate:.3f}" for name, rate in summary.segments.items())
    return f"dev acceptance {summary.acceptance:.3f}" + (f" ({parts})" if parts else "")


def kept(history: Entries) -> Log:
    """The entries without what only the trainer's library needs."""
    entries = [{name: entry[name] for name in _KEPT if name in entry} for entry in history]
    return [entry for entry in entries if len(entry) > 1]


def trial_entry(rate: float, step: int, acceptance: float | None, omega: float | None) -> dict[str, Any]:
    """The entry of a short training at another rate; without figures if it diverged."""
    figures = {} if omega is None else {RATE: acceptance, OMEGA: omega}
    return {TRIAL: rate, "step": step} | figures


def examinations(log: Log) -> list[dict[str, Any]]:
    """The entries of examinations of the draft itself, in order."""
    return [entry for entry in log if OMEGA in entry and TRIAL not in entry]


def best(log: Log) -> dict[str, Any]:
    """The entry of the best draft: the first with the most tokens per target call."""
    return max(examinations(log), key=lambda entry: entry[OMEGA])


def best_step(history: Entries) -> int:
    """The first step with the most tokens per target call on dev prompts; 0 before the first examination."""
    return max(_examined(history), key=lambda examined: examined[1], default=(0, 0.0))[0]


def out_of_patience(history: Entries, settings: DistillConfig) -> bool:
    best = best_step(history)
    since = sum(step > best for step, _ in _examined(history))
    return settings.patience > 0 and since >= settings.patience


def _examined(history: Entries) -> list[tuple[int, float]]:
    return [(entry["step"], entry[OMEGA]) for entry in history if OMEGA in entry]
