"""Reads and writes decisions: `decision.json` of a gate artifact, and the decision in the record of a run."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from pipeline.acceptance.contradictions import check_figures
from pipeline.judgement.rule_result import PASS
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    FILE,
    PROMOTE,
    REMEDY,
    BriefDecision,
    Decision,
    TrainingStep,
)
from pipeline.judgement.speed import as_measurable, without_measured
from pipeline.judgement.what_now import without_step_times
from pipeline.store.files import write_json
from pipeline.store.parsing import Format, format_of
from pipeline.store.runs import RunRecord

_Any = TypeVar("_Any", bound=BriefDecision)
_ROUNDING = 1e-6
_SCHEMA_OF_0_1_0 = 9


def check_decision(decision: Decision) -> None:
    """Whether the parts of a decision can belong together. ValueError for a draft that is promoted although a rule did not pass,
    and for a gain that is not that of the two drafts."""
    failed = [rule.name for rule in decision.rules if rule.verdict != PASS]
    if decision.verdict == PROMOTE and (failed or not decision.rules):
        raise ValueError(f"verdict is {PROMOTE}, and {f'{failed[0]} did not pass' if failed else 'there is no rule'}")
    check_figures(decision)
    if decision.gains is None or CANDIDATE not in decision.drafts or BASELINE not in decision.drafts:
        return
    ours, theirs = (decision.drafts[side].acceptance_rate.value for side in (CANDIDATE, BASELINE))
    gain = decision.gains.acceptance_rate.value
    if abs(gain - (ours - theirs)) > _ROUNDING:
        raise ValueError(f"gains.acceptance_rate is {gain:.6g}, and the drafts differ by {ours - theirs:.6g}")


DECISION = format_of(Decision, check=check_decision)
TRAINING = Format(name="training log", content=list[TrainingStep], remedy=REMEDY)


def read_decision(gate: Path) -> Decision:
    """The decision in a `gate` artifact. UnderstudyError naming the file if it is missing, damaged or of another version."""
    return _as_measurable(DECISION.read(gate / FILE))


def find_decision(gate: Path) -> Decision | None:
    """The decision, as by `read_decision`; None if there is no decision, or if another version wrote it."""
    path = gate / FILE
    raw = DECISION.read_raw(path) if path.is_file() else None
    known = isinstance(raw, dict) and raw.get("schema") == DECISION.schema
    return _as_measurable(DECISION.parse(raw, str(path))) if known else None


def write_decision(gate: Path, decision: Decision) -> None:
    write_json(gate / FILE, asdict(decision))


def recorded_decision(record: RunRecord) -> BriefDecision | None:
    """The decision of a run, without its evidence; None for a run without one. UnderstudyError if it is of another version."""
    if record.decision is None:
        return None
    return _as_measurable(format_of(BriefDecision).parse(record.decision, f"run {record.id}"))


def decision_of_0_1_0(record: RunRecord) -> BriefDecision | None:
    """The decision of a run of version 0.1.0, without its speed, the only part that has another form now; None for a run of this
    version, and for one without a decision."""
    if record.decision is None or record.decision.get("schema") != _SCHEMA_OF_0_1_0:
        return None
    as_now = record.decision | {"schema": DECISION.schema, "speed": None}
    return format_of(BriefDecision).parse(as_now, f"run {record.id}")


def _as_measurable(decision: _Any) -> _Any:
    """An earlier version recorded speedups of a single prompt, and lines that rest on them."""
    speed = as_measurable(decision.speed)
    if speed == decision.speed:
        return decision
    warnings, lines = without_measured(decision.warnings), without_step_times(decision.what_now)
    return replace(decision, speed=speed, warnings=warnings, what_now=lines)


def split_trials(log: Sequence[TrainingStep]) -> tuple[list[TrainingStep], list[TrainingStep]]:
    """The trials of learning rates before a training, and its own steps."""
    trials = [row for row in log if row.trial_learning_rate is not None]
    return trials, [row for row in log if row.trial_learning_rate is None]


def read_training(path: Path) -> list[TrainingStep]:
    """The log of a training. UnderstudyError naming the file if it is damaged."""
    return TRAINING.read(path)
