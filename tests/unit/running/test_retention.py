"""What `understudy store gc` keeps, on artifacts made by hand; nothing is registered."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.acceptance.baseline import Conditions, ExaminedCounts, baseline_json
from pipeline.commands.store import print_entries
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.root import Config
from pipeline.errors import UnderstudyError
from pipeline.running.retention import Policy, StoreEntry, delete, empty_trash, why_kept
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.processes import sign_life
from pipeline.store.runs import JobEntry, OutsideInput, RunRecord, run_directory, run_lock
from tests.integration.mlflow_fixtures import config_of

OLD = time.time() - 3 * 86400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Store(tmp_path / "store")


def artifact(store: Store, stage: str, key: str, **inputs: str) -> str:
    work = store.open_work(stage, key, resumable=False)
    (work / "file").write_bytes(b"0" * 1000)
    provides = {"draft": f"{stage}-{key} draft"}
    manifest = {"stage": stage, "key": key, "figures": {}, "provides": provides, "inputs": inputs}
    return store.commit(work, manifest).path.name


def run(store: Store, number: int, *names: str, state: str = "finished", config: Config | None = None) -> RunRecord:
    jobs = {name: JobEntry(stage=name.split("-")[0], key=name.split("-")[1]) for name in names}
    day = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(OLD - 86400 * (20 - number)))
    raw = (config or config_of()).model_dump(mode="json")
    record = RunRecord(id=f"run-{number}", name="loop", created=day, config=raw, outside={}, jobs=jobs, state=state)
    record.save(store)
    path = run_directory(store, record.id) / "run.json"
    os.utime(path, (OLD, OLD))
    return record


def kept(store: Store, **policy: Any) -> dict[str, str]:
    """Why each artifact is kept, of those that are."""
    entries = why_kept(store, Policy(**{"runs": 0, **policy}))
    return {entry.path.name: entry.why for entry in entries if entry.why}


def test_the_latest_finished_runs_keep_what_they_need(store: Store) -> None:
    """With all that their artifacts were made from; a refused run has finished, a failed one has not."""
    corpus, other = artifact(store, "corpus", "c"), artifact(store, "corpus", "d")
    completions = artifact(store, "generate", "g", corpus="c")
    draft = artifact(store, "distill", "t", completions="g")
    judged = artifact(store, "evaluate", "e", draft="distill-t draft")
    run(store, 1, other)
    run(store, 2, judged, state="refused")
    run(store, 3, other, state="failed")

    assert {} == kept(store)
    assert dict.fromkeys((judged, draft, completions, corpus), "kept run") == kept(store, runs=1)
    assert {judged, draft, completions, corpus, other} == set(kept(store, runs=2)) == set(kept(store, days=30))


def test_a_running_run_keeps_what_it_needs(store: Store) -> None:
    """By its lock however old it is, and for a day after its last change if it is unfinished. Of stages whose keys cannot be
    known yet it keeps everything."""
    pair, old = artifact(store, "pair", "p"), artifact(store, "distill", "t")
    record = run(store, 1, pair, state="running")
    killed = kept(store)
    with store.lock(run_lock(record.id), shared=True):
        running = kept(store)
    record.save(store)

    assert {} == killed
    assert dict.fromkeys((pair, old), "running run") == running == kept(store)


def test_a_baseline_keeps_its_completions(store: Store, tmp_path: Path) -> None:
    """A file outside the store names them by their key."""
    corpus = artifact(store, "corpus", "c")
    completions, _ = artifact(store, "generate", "g", corpus="c"), artifact(store, "generate", "h", corpus="c")
    conditions = Conditions(
        completions="g",
        completions_sha256="s",
        target="t",
        target_dtype="float32",
        sampling={},
        evaluate=EvaluateConfig().model_dump(mode="json"),
        dtype="float32",
    )
    examined = ExaminedCounts(counts=[], conditions=conditions, hardware="h", digest="d", trained_on=frozenset())
    write_json(tmp_path / "baseline.json", baseline_json(examined))

    assert dict.fromkeys((completions, corpus), "baseline") == kept(store, baselines=[tmp_path / "baseline.json"])


def test_deleted_is_what_nobody_builds(store: Store) -> None:
    """An artifact whose lock is held stays; old unfinished work goes and young stays; the trash is emptied."""
    for key in ("a", "b"):
        artifact(store, "corpus", key)
    for key in ("old", "young", "locked"):
        (store.open_work("distill", key, resumable=True) / "half").write_bytes(b"0" * 500)
    for path in (store.root / "work").rglob("*"):
        if "young" not in str(path):
            os.utime(path, (OLD, OLD))
    os.utime(store.root / "work" / "distill-old", (OLD, OLD))
    (store.root / "parts" / ".generate-a.partial").mkdir(parents=True)
    (store.root / "parts" / ".generate-a.partial" / "half").touch()
    for name in ("generate-a.old.claim", "generate-a.young.claim"):
        (store.root / "parts" / name).touch()
    os.utime(store.root / "parts" / "generate-a.old.claim", (OLD, OLD))
    with store.lock("corpus-b"), store.lock("distill-locked"):
        gone = delete(store, why_kept(store, Policy(runs=0)))
    empty_trash(store)

    assert ["corpus-a", "distill-old", "generate-a.old.claim"] == sorted(entry.path.name for entry in gone)
    assert ["corpus-b"] == [path.name for path in (store.root / "artifacts").iterdir()]
    assert ["distill-locked", "distill-young"] == sorted(path.name for path in (store.root / "work").iterdir())
    assert [] == list((store.root / "trash").iterdir())


def test_a_run_of_another_version_keeps_its_artifacts(store: Store) -> None:
    """Its config cannot be read, but its record says which artifacts it has."""
    one = artifact(store, "corpus", "c")
    record = run(store, 1, one)
    record.config["unknown"] = 1
    record.save(store)

    assert {one: "kept run"} == kept(store, runs=1)


def test_downloaded_champions_go_unless_one_is_needed(store: Store) -> None:
    """A running run examines the champion that it began with."""
    for digest in ("needed", "other"):
        (store.root / "champions" / digest).mkdir(parents=True)
    (store.root / "artifacts").mkdir()
    record = run(store, 1, state="running")
    record.outside["champion"] = OutsideInput("needed", facts={"name": "loop-draft", "version": "1"})
    record.save(store)

    assert {"needed": "champion"} == kept(store)


def test_the_table_says_what_is_freed_and_why_the_rest_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row for each stage in the order of the loop, and what to do."""
    monkeypatch.setenv("COLUMNS", "100")
    entries = [
        StoreEntry(Path("distill-a"), "distill", 3_000_000, ""),
        StoreEntry(Path("corpus-a"), "corpus", 1_000_000, "champion"),
        StoreEntry(Path("corpus-b"), "corpus", 1_000_000, "kept run"),
        StoreEntry(Path("corpus-c"), "corpus", 1_000_000, "champion"),
    ]
    print_entries(entries, entries[:1], deleted=False)
    print_entries(entries[1:], [], deleted=False)
    out = capsys.readouterr().out

    rows = [line.strip("│ ").split("│") for line in out.splitlines() if line.startswith("│")]
    assert [
        ["corpus", "3", "3", "0.0", "champion 2, kept run 1"],
        ["distill", "1", "0", "3.0", "-"],
    ] == [[cell.strip() for cell in row] for row in rows[:2]]
    assert "1 directory, 3.0 MB, can be deleted; nothing was changed, add --delete to do so" in out
    assert out.endswith("nothing to delete\n")


def test_nothing_is_deleted_while_a_run_of_another_version_works(store: Store) -> None:
    """Nobody knows what it needs. Once it has ended it is skipped."""
    record = run(store, 1, artifact(store, "corpus", "c"))
    path = store.runs / record.id / "run.json"
    write_json(path, {**json.loads(path.read_text()), "schema": 99})
    sign = sign_life(path.parent)
    with pytest.raises(UnderstudyError, match="its record cannot be read, so its artifacts are unknown"):
        why_kept(store, Policy(runs=0))
    sign.unlink()
    assert {} == kept(store)
