"""SIGKILL, SIGINT and SIGTERM at any point: what was committed stays, the next run finishes and ends the same."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import beginning_of, start_until, start_until_true, unchanged, without_registry
from tests.integration.conftest import BUILT, JOBS, SMOKE, Ended, Place, Smoke, copy_place


def _same_end(smoke: Smoke, place: Place) -> None:
    """The next run finishes, and weights, completions, profiles and the registry are those of an undisturbed run."""
    ended = place.process("run", SMOKE, "--run", "last")
    assert (0, "finished") == (ended.code, place.record("last")["state"]), ended.err
    expected, found = smoke.place.contents(), place.contents()
    # Where the kill came after the alias had moved, the next run's gate adds its own answer: already champion.
    assert expected == {name: seen for name, seen in found.items() if name in expected}
    assert {"gate"} >= {name.partition("-")[0] for name in found if name not in expected}
    assert ("1", ["reference-draft"]) == (place.champion(), list(place.registry()))
    assert ["1"] == list(place.registry()["reference-draft"]["versions"])
    assert [] == list((place.store / "work").iterdir())


def test_killed_at_the_beginning_of_every_job(smoke: Smoke, place: Place) -> None:
    """Sixteen kills, one a job, on one store: no committed artifact is ever made again, and the end is the same."""
    for job in BUILT:
        before = place.committed()
        process, seen = start_until(place, beginning_of(job))
        process.kill()
        process.communicate()
        assert unchanged(before, place), job
        assert beginning_of(job) in seen, f"{job} was never reached: {seen}"
    before = place.committed()
    _same_end(smoke, place)
    assert unchanged(before, place)


@pytest.mark.parametrize(
    "mark",
    [
        "work/pair-*/*/model.safetensors",
        "work/generate-*/shard-00003.completions.arrow",
        "work/distill-*/checkpoints/whole/offline/checkpoint-20/checkpoint_complete",
    ],
    ids=["in pair", "in generate", "in distill"],
)
def test_killed_within_a_job(smoke: Smoke, place: Place, mark: str) -> None:
    """Killed half-way, the job goes on where it was: what it had finished is kept, and the bytes are the same."""
    process = start_until_true(place, lambda: any(place.store.glob(mark)))
    process.kill()
    process.communicate()
    before = place.committed()
    shards = {path.name: path.stat().st_mtime_ns for path in place.store.glob("work/generate-*/*.completions.arrow")}
    _same_end(smoke, place)
    assert unchanged(before, place)
    for name, modified in shards.items():
        assert modified == (place.artifact("generate", "last") / name).stat().st_mtime_ns


def test_killed_within_promote(smoke: Smoke, tmp_path: Path) -> None:
    """Wherever a promotion is cut short, the next run completes it: one version, one alias, no claim left."""
    template = without_registry(smoke.place, tmp_path / "template")
    template.process("champion", "rollback", SMOKE)  # fails, having made the database
    (template.store / "runs").mkdir()
    for number in range(8):
        place = copy_place(template, tmp_path / f"place-{number}")
        process, _ = start_until(place, beginning_of("promote"))
        time.sleep(0.04 * number)
        process.kill()
        process.communicate()
        _same_end(smoke, place)


def _stop(place: Place, job: str, number: signal.Signals) -> Ended:
    process, _ = start_until(place, beginning_of(job), "--run", job.replace("/", "-"))
    process.send_signal(number)
    out, err = process.communicate()
    return Ended(process.returncode, out, err)


def test_interrupted_in_every_job(smoke: Smoke, place: Place) -> None:
    """Ctrl-C in each job: exit 130, one line, the record says interrupted; then a run finishes with the same end."""
    for job in BUILT:
        before = place.committed()
        ended = _stop(place, job, signal.SIGINT)
        expected = (130, "interrupted; finished artifacts are kept, run again to continue", "interrupted")
        assert expected == (ended.code, ended.complaint, place.record(job.replace("/", "-"))["state"]), job
        assert unchanged(before, place)
    _same_end(smoke, place)


def test_terminated(smoke: Smoke, loop: Place) -> None:
    """A scheduler's SIGTERM is told like Ctrl-C, and the run is taken up under its own id."""
    process, _ = start_until(loop, beginning_of("distill"), "--set", "distill.max_steps=61", "--run", "ended")
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    state = loop.record("ended")["state"]
    again = loop.process("run", SMOKE, "--set", "distill.max_steps=61", "--run", "ended")
    assert (130, "interrupted") == (process.returncode, state), err
    assert again.code in (0, 3), again.err
    assert loop.record("ended")["state"] in ("finished", "refused")


def test_two_runs_at_once(smoke: Smoke, place: Place) -> None:
    """Two runs on one fresh store: both exit 0, every artifact is built by one of them, the draft is promoted once."""
    processes = [place.start("run", SMOKE, "--run", run) for run in ("one", "two")]
    errors = [process.communicate()[1] for process in processes]
    assert [0, 0] == [process.returncode for process in processes], "\n---\n".join(errors)
    states = [place.record(run)["jobs"] for run in ("one", "two")]
    for job in BUILT:
        if job != "promote":
            assert ["done", "skipped"] == sorted(jobs[job]["state"] for jobs in states), job
    results = [jobs["promote"]["notes"]["result"] for jobs in states]
    assert ["already champion", "promoted"] == sorted(results)
    assert smoke.place.contents() == place.contents()
    assert ["1"] == list(place.registry()["reference-draft"]["versions"])
    assert "1" == place.champion()


def test_stages_one_by_one_from_nothing(smoke: Smoke, place: Place) -> None:
    """`understudy stage` for every stage on a fresh store builds what `run` builds, byte for byte."""
    for stage in dict.fromkeys(job.partition("/")[0] for job in JOBS):
        ended = place.process("stage", stage, SMOKE, "--run", "by-hand")
        assert 0 == ended.code, ended.err
    assert smoke.place.contents() == place.contents()
    assert smoke.place.keys("first") == place.keys("by-hand")
    promotion = json.loads((place.store / "runs" / "by-hand" / "promote" / "promotion.json").read_text())
    assert ("promoted", "1") == (promotion["result"], place.champion())
