"""Completions of the real command from every place, undisturbed and not: always the same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.store.processes import running_process
from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke
from tests.integration.test_execution import completions, shard_times, task
from tests.integration.test_turns import RUN, Chats, killed_in_second_turn

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]
ON_RAY = ("--set", "execution.ray={workers: 2}")
REPEATS = int(os.environ.get("SCALE_REPEATS", "3"))  # 50 for the record


def _begin(place: Place, *options: str) -> subprocess.Popen[str]:
    return place.start("run", SMOKE, "--until", "generate", *options, PYTHONPATH=str(ROOT), MLFLOW_TRACKING_URI=NOBODY)


def _again(place: Place) -> None:
    """Without completions."""
    for path in (place.store / "artifacts").glob("generate-*"):
        shutil.rmtree(path)


def _workers(pattern: str) -> list[int]:
    """Processes by the words of their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if pattern in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_ray_generates_what_one_process_does(smoke: Smoke, ungenerated: Place) -> None:
    """On a cluster of this machine; nothing of it is left."""
    ray = _begin(ungenerated, *ON_RAY)
    _, err = ray.communicate(timeout=600)

    assert 0 == ray.returncode, err
    assert completions(smoke.place) == completions(ungenerated)
    assert [] == list((ungenerated.store / "parts").iterdir())


def test_a_killed_actor_changes_no_byte(smoke: Smoke, ungenerated: Place) -> None:
    """At a random moment, REPEATS times."""
    for number in range(REPEATS):
        _again(ungenerated)
        before = set(_workers("ray::_Actor"))
        ray = _begin(ungenerated, *ON_RAY)
        while not (own := [one for one in _workers("ray::_Actor") if one not in before]) and ray.poll() is None:
            time.sleep(0.05)
        time.sleep(random.Random(number).uniform(0, 3))
        for one in own[:1]:
            if running_process(one):
                os.kill(one, signal.SIGKILL)
        _, err = ray.communicate(timeout=600)
        assert 0 == ray.returncode, err
        assert completions(smoke.place) == completions(ungenerated)


def test_an_actor_that_is_killed_in_the_second_turn_changes_no_byte(chats: Chats, unanswered: Place) -> None:
    """Of chats with three turns; what was made before is not made again."""
    ray = unanswered.start("run", chats.config, *RUN, *ON_RAY, PYTHONPATH=str(ROOT), MLFLOW_TRACKING_URI=NOBODY)
    made = killed_in_second_turn(unanswered, ray, "ray::_Actor")

    assert completions(chats.place) == completions(unanswered)
    kept = shard_times(unanswered, "artifacts")
    assert made == {name: kept[name] for name in made} != {}


def test_a_task_that_runs_twice_or_late_changes_no_byte(smoke: Smoke, ungenerated: Place) -> None:
    """Two of one share at once, without claims; and one that is stopped until the artifact is committed. REPEATS times."""
    for number in range(REPEATS):
        _again(ungenerated)
        run = f"tasks-{number}"
        begun = ungenerated.understudy("run", SMOKE, "--until", "corpus", "--run", run)
        assert 0 == begun.code, begun.err
        call = [word if word != "tasks" else run for word in task("1/2")]
        twice = [ungenerated.start(*call, PYTHONPATH=str(ROOT)) for _ in range(2)]
        while not (claims := list((ungenerated.store / "parts").glob("*.claim"))) and twice[0].poll() is None:
            time.sleep(0.01)
        late = next((one for one in twice if any(f" {one.pid}" in _text(claim) for claim in claims)), twice[0])
        late.send_signal(signal.SIGSTOP)
        for claim in claims:
            claim.unlink(missing_ok=True)  # as if it had been silent for long
        ended = ungenerated.process("stage", "generate", SMOKE, "--run", run, PYTHONPATH=str(ROOT))
        assert 0 == ended.code, ended.err
        late.send_signal(signal.SIGCONT)
        said = [one.communicate(timeout=600)[1] for one in twice]
        assert [0, 0] == [one.returncode for one in twice], said
        assert completions(smoke.place) == completions(ungenerated)
        artifacts = [path.parent for path in ungenerated.store.glob("artifacts/generate-*/manifest.json")]
        for artifact in artifacts:
            listed = {"manifest.json", *json.loads((artifact / "manifest.json").read_text())["files"]}
            assert listed == {str(path.relative_to(artifact)) for path in artifact.rglob("*") if path.is_file()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
