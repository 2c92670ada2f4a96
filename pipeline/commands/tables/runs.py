"""What `understudy runs` prints: one row for each run of a store, the latest last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.console import Report
from pipeline.errors import UnderstudyError
from pipeline.judgement.decision_file import decision_of_0_1_0, recorded_decision
from pipeline.judgement.headline import outcome, points
from pipeline.judgement.schema import BriefDecision
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, load_run, state_of

COLUMNS = ("run", "config", "verdict", "gain (points)", "started (UTC)", "state")
_DAMAGED, _OF_0_1_0 = "damaged", "of version 0.1.0"


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run in the list. A run whose record cannot be read has an id and a `problem` only."""

    run: str
    config: str = ""
    verdict: str = ""  # of the gate, with what became of the draft; empty before it
    gain: Figure | None = None  # in acceptance rate, over the draft that it was compared with
    started: str = ""
    state: str
    problem: str = ""  # why the run failed


def list_lines(store: Store) -> list[RunLine]:
    """The runs of the store by the time at which they started. A damaged record hides no other."""
    return sorted(_lines(store), key=lambda line: (line.started, line.run))


def _lines(store: Store) -> Iterator[RunLine]:
    for path in store.runs.glob("*/run.json"):
        try:
            record = load_run(store, path.parent.name)
            if record is not None:
                yield _line(store, record)
        except UnderstudyError as error:
            yield RunLine(run=path.parent.name, state=_DAMAGED, problem=str(error))


def _line(store: Store, record: RunRecord) -> RunLine:
    earlier = decision_of_0_1_0(record)
    decision = earlier or recorded_decision(record)
    return RunLine(
        run=record.id,
        config=record.name,
        verdict="" if decision is None else outcome(decision, record.promotion or None),
        gain=None if decision is None else _gain(decision),
        started=record.created,
        state=_OF_0_1_0 if earlier else state_of(store, record),
        problem=record.failure,
    )


def _gain(decision: BriefDecision) -> Figure | None:
    return next((rule.figure for rule in decision.rules if rule.name == "min_gain"), None)


def print_runs(lines: Sequence[RunLine]) -> None:
    """Print a table to stdout, and below it why runs failed, which is too long for a table."""
    out = Report()
    out.table(COLUMNS, [_row(line) for line in lines], left=("run", "config", "verdict", "state"))
    for line in lines:
        if line.problem:
            out.text(f"{line.run}: {line.problem}", indent=2)


def _row(line: RunLine) -> list[str]:
    started = line.started[: len("2026-11-25T09:41")].replace("T", " ")
    gain = "-" if line.gain is None else points(line.gain).replace(" points", "")
    return [line.run, line.config or "-", line.verdict or "-", gain, started or "-", line.state]
