"""Completions generated, and drafts examined, in several processes are those of one, to the byte."""

import errno
import json
import shutil
from typing import Any

import pytest

from tests.integration.conftest import RUN, SMOKE, Place, Smoke


@pytest.fixture
def ungenerated(loop: Place) -> Place:
    """The smoke store without completions, and without what was made of them."""
    for path in (loop.store / "artifacts").iterdir():
        if path.name.partition("-")[0] not in ("pair", "corpus"):
            shutil.rmtree(path)
    return loop


def completions(place: Place) -> dict[str, dict[str, str]]:
    """SHA-256 of every file of the completions' artifacts."""
    return {name: files for name, files in place.contents().items() if name.startswith("generate-")}


def shard_times(place: Place, state: str) -> dict[str, int]:
    """When each shard was written, by artifact and name: in `work` or in `artifacts`."""
    found = (place.store / state).glob("generate-*/*.completions.arrow")
    return {f"{path.parent.name}/{path.name}": path.stat().st_mtime_ns for path in found}


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_generate_what_one_does(smoke: Smoke, loop: Place) -> None:
    """Nothing is left beside it. The manifest has their device and number, and the memory of the largest."""
    _two_processes_generate_what_one_does(smoke, loop)


@pytest.mark.long
@pytest.mark.usefixtures("first_worker_started")
def test_a_worker_that_is_started_generates_too(smoke: Smoke, loop: Place) -> None:
    """As for a user: it imports what it needs (`tests/unit/store/test_worker_processes.py` starts workers of less)."""
    _two_processes_generate_what_one_does(smoke, loop)


def _two_processes_generate_what_one_does(smoke: Smoke, loop: Place) -> None:
    shutil.rmtree(loop.artifact("generate"))
    ended = loop.understudy("run", SMOKE, "--until", "generate", "--run", "two", "--set", "execution.local=2")

    assert 0 == ended.code, ended.err
    assert {"pair": "skipped", "corpus": "skipped", "generate": "done", "generate/before": "skipped"} == ended.states
    assert "made again" not in ended.err  # the other worker would make the parts of one that cannot start
    assert completions(smoke.place) == completions(loop)
    assert [] == [*(loop.store / "parts").iterdir(), *(loop.store / "work").iterdir()]
    one, two = (_manifest(place, run) for place, run in ((smoke.place, RUN), (loop, "two")))
    assert (one["environment"]["device"], "2") == (two["environment"]["device"], two["environment"]["workers"])
    assert two["peak_memory"]["process"] > 200e6  # a process with torch


def _manifest(place: Place, run: str) -> Any:
    return json.loads((place.artifact("generate", run) / "manifest.json").read_text())


def task(shards: str, stage: str = "generate") -> list[object]:
    """The arguments of a scheduler's task."""
    return ["stage", stage, SMOKE, "--run", "tasks", "--shards", shards]


def test_tasks_of_a_scheduler_generate_what_one_process_does(smoke: Smoke, ungenerated: Place) -> None:
    """Two of three tasks at once, one of them twice; the ordinary command makes the third share, and commits. A task that comes
    late changes nothing. Nothing of the run is written by tasks."""
    ended = ungenerated.understudy("run", SMOKE, "--until", "corpus", "--run", "tasks")
    assert 0 == ended.code, ended.err
    before = (ungenerated.store / "runs/tasks/run.json").read_bytes()
    tasks = [ungenerated.forked(*task(shards)) for shards in ("1/3", "3/3", "3/3")]
    said = [one.communicate(timeout=600)[1] for one in tasks]
    assert [0, 0, 0] == [one.returncode for one in tasks], said
    assert all(
        f"generate: shards {shards} are there" in one for shards, one in zip(("1/3", "3/3", "3/3"), said, strict=True)
    )
    assert before == (ungenerated.store / "runs/tasks/run.json").read_bytes()
    made = shard_times(ungenerated, "work")
    whole = ungenerated.understudy("stage", "generate", SMOKE, "--run", "tasks")
    late = ungenerated.understudy(*task("2/3"))

    assert (0, 0) == (whole.code, late.code), whole.err + late.err
    assert completions(smoke.place) == completions(ungenerated)
    kept = shard_times(ungenerated, "artifacts")
    assert made == {name: kept[name] for name in made} != {}
    assert "generate: already in the store" in late.err
    assert [] == [*(ungenerated.store / "parts").iterdir(), *(ungenerated.store / "work").iterdir()]


def test_a_task_needs_no_file_locks(ungenerated: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may have mounted the store without them; the command that merges needs them."""
    begun = ungenerated.understudy("run", SMOKE, "--until", "corpus", "--run", "tasks")
    assert 0 == begun.code, begun.err
    monkeypatch.setattr("fcntl.flock", _no_locks)
    ended = ungenerated.understudy(*task("1/9"))
    merging = ungenerated.understudy("stage", "generate", SMOKE, "--run", "tasks")

    assert 0 == ended.code, ended.err
    assert "generate: shards 1/9 are there" in ended.err
    assert 2 == merging.code
    assert "this file system has no file locks" in merging.complaint


def _no_locks(*arguments: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize(
    ("stage", "shards", "run", "complaint"),
    [
        (
            "generate",
            "4/3",
            "first",
            "--shards: 4/3 is no share: write 3/16 for the third of 16 tasks, from 1/16 to 16/16",
        ),
        ("distill", "1/3", "first", "--shards: distill is not made in shards, only generate, evaluate; leave it out"),
        ("generate", "1/3", "other", "--run other: no such run in STORE; run the stages before this one"),
    ],
)
def test_a_wrong_share_is_said_in_one_line(loop: Place, stage: str, shards: str, run: str, complaint: str) -> None:
    """With exit code 2."""
    ended = loop.understudy("stage", stage, SMOKE, "--run", run, "--shards", shards)

    assert (2, complaint.replace("STORE", str(loop.store))) == (ended.code, ended.complaint)


def _examinations(place: Place) -> dict[str, dict[str, str]]:
    """SHA-256 of every file of an examination of a draft and of that of prompt-lookup."""
    found = {}
    for name, files in sorted(place.contents().items()):
        path = place.store / "artifacts" / name / "acceptance.json"
        if path.exists():
            found[json.loads(path.read_text())["draft"]["kind"]] = (name, files)
    return dict(found.values())


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_examine_as_one_does(loop: Place) -> None:
    """Shard by shard; the files of the shards are gone."""
    before = _examinations(loop)
    assert 2 == len(before)
    for name in before:
        shutil.rmtree(loop.store / "artifacts" / name)
    ended = loop.understudy("run", SMOKE, "--until", "evaluate", "--run", "two", "--set", "execution.local=2")

    assert 0 == ended.code, ended.err
    assert 2 == list(ended.states.values()).count("done")
    assert before == {name: files for name, files in loop.contents().items() if name in before}
    assert [] == [*(loop.store / "parts").iterdir(), *(loop.store / "work").iterdir()]


def test_tasks_of_a_scheduler_examine_what_one_process_does(loop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks make all shards of each draft; the ordinary command adds them up without examining one again. A task that comes
    late changes nothing."""
    before = _examinations(loop)
    for name in before:
        shutil.rmtree(loop.store / "artifacts" / name)
    assert 0 == loop.understudy("run", SMOKE, "--until", "quantize", "--run", "tasks").code
    record = (loop.store / "runs/tasks/run.json").read_bytes()
    for shards in ("1/2", "2/2"):
        ended = loop.understudy(*task(shards, "evaluate"))
        assert 0 == ended.code, ended.err
        assert f"evaluate/prompt-lookup: shards {shards} are there" in ended.err.splitlines()[-1]
    assert record == (loop.store / "runs/tasks/run.json").read_bytes()
    monkeypatch.setattr("pipeline.examination.shard_worker._examine", None)
    whole = loop.understudy("stage", "evaluate", SMOKE, "--run", "tasks")
    late = loop.understudy(*task("1/2", "evaluate"))

    assert (0, 0) == (whole.code, late.code), whole.err + late.err
    assert before == {name: files for name, files in loop.contents().items() if name in before}
    assert all(
        json.loads((loop.store / "artifacts" / name / "manifest.json").read_text())["resumed"] for name in before
    )
    assert "evaluate/prompt-lookup: already in the store" in late.err
    shown = " ".join(loop.understudy("show", "tasks").out.split())
    assert "not in these times: what tasks of a scheduler or a killed run had made before (evaluate/" in shown
    assert [] == [*(loop.store / "parts").iterdir(), *(loop.store / "work").iterdir()]
