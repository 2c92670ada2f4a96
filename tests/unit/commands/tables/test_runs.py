"""The list of runs: what it says of each, also of runs that failed, were killed or cannot be read."""

from pathlib import Path

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.runs import list_lines, print_runs
from pipeline.judgement.schema import brief
from pipeline.store.artifacts import Store
from pipeline.store.runs import JobEntry, RunRecord, run_directory, run_lock
from tests.decisions import make_decision


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    found.create()
    return found


def _record(run: str, created: str, **fields: object) -> RunRecord:
    return RunRecord(id=run, name="chat", created=created, config={}, outside={}, **fields)  # type: ignore[arg-type]


def test_each_run_has_its_verdict_gain_and_state(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order in which they started; the gain is that of the rule min_gain."""
    decision = make_decision()
    promoted = JobEntry(stage="promote", key="k", notes={"result": "promoted", "name": "n", "version": "3"})
    _record("b", "2026-01-02T00:00:00Z", state="failed", failure="pair: no such model").save(store)
    _record("a", "2026-01-01T00:00:00Z", state="finished", decision=brief(decision), jobs={"promote": promoted}).save(
        store
    )
    first, second = list_lines(store)
    print_runs([first, second])
    printed = capsys.readouterr().out

    assert ("a", "chat", "finished", "") == (first.run, first.config, first.state, first.problem)
    assert first.verdict.startswith("promoted as version 3")
    assert isinstance(first.gain, Figure)
    assert first.gain == next(rule.figure for rule in decision.rules if rule.name == "min_gain")
    assert ("b", "", None, "failed") == (second.run, second.verdict, second.gain, second.state)
    assert f"{100 * first.gain.value:+.2f} [" in printed
    assert "b: pair: no such model\n" in printed


def test_a_run_that_was_killed_is_not_shown_as_running(store: Store) -> None:
    """Its record says `running` for good; a run that a process works on is running."""
    for run in ("dead", "alive"):
        _record(run, "2026-01-01T00:00:00Z").save(store)
    with store.lock(run_lock("alive"), shared=True):
        assert {"dead": "interrupted", "alive": "running"} == {line.run: line.state for line in list_lines(store)}


def test_a_record_that_cannot_be_read_hides_no_other(store: Store) -> None:
    """It is in the list, with the reason."""
    _record("good", "2026-01-01T00:00:00Z", state="finished").save(store)
    run_directory(store, "bad").mkdir(parents=True)
    (run_directory(store, "bad") / "run.json").write_text("{")
    bad, good = list_lines(store)
    assert ("bad", "damaged", True) == (bad.run, bad.state, "run.json" in bad.problem)
    assert ("good", "finished") == (good.run, good.state)
