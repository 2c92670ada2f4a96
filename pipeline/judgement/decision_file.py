"""Reads and writes decisions: `decision.json` of a gate artifact, and the decision in the record of a run."""

from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from pipeline.judgement.schema import FILE, SCHEMA, BriefDecision, Decision, TrainingStep, parse_brief, parse_decision
from pipeline.store.files import damaged, read_json, write_json
from pipeline.store.parsing import parse
from pipeline.store.runs import RunRecord

_TRAINING = TypeAdapter(list[TrainingStep])


def read_decision(gate: Path) -> Decision:
    """The decision in a `gate` artifact. UnderstudyError naming the file if it is missing, damaged or of another version."""
    path = gate / FILE
    return parse_decision(read_json(path), str(path))


def find_decision(gate: Path) -> Decision | None:
    """As `read_decision`; None if there is no decision, or if another version wrote it."""
    path = gate / FILE
    raw = read_json(path) if path.is_file() else None
    return parse_decision(raw, str(path)) if isinstance(raw, dict) and raw.get("schema") == SCHEMA else None


def write_decision(gate: Path, decision: Decision) -> None:
    write_json(gate / FILE, asdict(decision))


def recorded_decision(record: RunRecord) -> BriefDecision | None:
    """The decision of a run, without its evidence; None for a run without one. UnderstudyError if it is of another version."""
    return None if record.decision is None else parse_brief(record.decision, f"run {record.id}")


def read_training(path: Path) -> list[TrainingStep]:
    """The log of a training. UnderstudyError naming the file if it is damaged."""
    try:
        return parse(_TRAINING, read_json(path))
    except ValueError as error:
        raise damaged(path, str(error)) from None
