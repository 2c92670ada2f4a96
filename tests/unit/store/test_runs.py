"""Records of runs: one that is damaged, of another version, or of another run is skipped by those who read all."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.runs import (
    JobEntry,
    RunRecord,
    list_runs,
    readable_run,
    require_run,
    shared_jobs,
    unreadable_runs,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With a run `good`, and four that cannot be read."""
    found = Store(tmp_path)
    for number, run in enumerate(("good", "older", "newer", "broken")):
        record = RunRecord(id=run, name="n", created=f"2026-11-25T00:00:0{number}Z", config={}, outside={})
        record.save(found)
    shutil.copytree(found.runs / "good", found.runs / "copied")
    older, newer = (found.runs / run / "run.json" for run in ("older", "newer"))
    write_json(older, {name: value for name, value in json.loads(older.read_text()).items() if name != "schema"})
    write_json(newer, {**json.loads(newer.read_text()), "schema": 2, "of_the_future": 1})
    (found.runs / "broken" / "run.json").write_text('{"id":')
    return found


def test_runs_that_cannot_be_read_are_skipped(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named once, in a line that says why and what to do; the latest run is the latest that can be read."""
    assert (["good"], ["good"], "good") == (list_runs(store), list_runs(store), require_run(store, None).id)
    lines = sorted(capsys.readouterr().err.splitlines())
    said = [
        "run broken is skipped",
        "run copied is skipped",
        "schema 2, and this version reads schema 1; move its directory out of the store",
        "schema None, and this version reads schema 1",
    ]
    assert [True] * 4 == [text in line for text, line in zip(said, lines, strict=True)], lines
    assert ["broken", "copied", "newer", "older"] == unreadable_runs(store)


def test_a_run_that_another_one_can_do_without_is_skipped(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, as where all are read; one that is not there is not."""
    good = readable_run(store, "good")
    assert ("good", None, None) == (good and good.id, readable_run(store, "broken"), readable_run(store, "nobody"))
    assert ["run broken is skipped"] == [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]


def test_a_store_whose_runs_cannot_be_read_is_not_called_empty(store: Store) -> None:
    """Else the user would look for another store."""
    shutil.rmtree(store.runs / "good")
    with pytest.raises(UsageError, match="no run here can be read; see why above; it has broken, copied, newer"):
        require_run(store, None)


def test_a_run_that_is_named_is_not_skipped(store: Store) -> None:
    """The error says what is wrong with its record; a run that is not there is another error."""
    assert "good" == require_run(store, "good").id
    with pytest.raises(UnderstudyError, match="schema 2, and this version reads schema 1"):
        require_run(store, "newer")
    with pytest.raises(UsageError, match=r"run nobody: not in .*; the latest is good"):
        require_run(store, "nobody")


def test_a_damaged_record_is_replaced_by_its_run(store: Store) -> None:
    """Whoever works on the run has the whole record in memory."""
    RunRecord(id="broken", name="n", created="2026-11-25T00:00:09Z", config={}, outside={}).save(store)
    assert ["good", "broken"] == list_runs(store)
    assert 1 == json.loads((store.runs / "broken" / "run.json").read_text())["schema"]


def test_jobs_of_one_artifact_share_it_with_who_built_it() -> None:
    """Whatever their names: the champion's examination may be the candidate's too."""

    def entry(stage: str, key: str, state: str) -> JobEntry:
        return JobEntry(stage=stage, key=key, state=state)

    jobs = {
        "evaluate/candidate": entry("evaluate", "a", "skipped"),
        "evaluate/champion": entry("evaluate", "a", "done"),
        "speed/base": entry("speed", "a", "skipped"),
        "speed/candidate": entry("speed", "a", "skipped"),
        "gate": entry("gate", "b", "done"),
    }
    record = RunRecord(id="r", name="n", created="", config={}, outside={}, jobs=jobs)
    assert {"evaluate/candidate": "evaluate/champion", "speed/candidate": "speed/base"} == shared_jobs(record)
