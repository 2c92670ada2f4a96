"""SIGKILL at random moments over all stages, with completions generated in two processes. KILLS=100 for the record."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import unchanged
from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke
from tests.integration.test_heads import head_config

KILLS = int(os.environ.get("KILLS", "10"))
LEAST, MOST = 1.0, 20.0  # seconds after which a run is killed: from its start-up to several jobs later
SPREAD = ("--set", "execution.local=2")


def _shards(place: Place) -> dict[Path, int]:
    """Shards that are finished, with their times: also those of a stage that is not."""
    return {path: path.stat().st_mtime_ns for path in place.store.glob("work/generate-*/*.completions.arrow")}


def _kept(before: dict[Path, int], place: Place) -> bool:
    """Whether each finished shard is where it was, or committed, and was not made again."""
    for path, modified in before.items():
        committed = place.store / "artifacts" / path.parent.name / path.name
        if modified != (path if path.exists() else committed).stat().st_mtime_ns:
            return False
    return True


def test_killed_at_random_moments(smoke: Smoke, place: Place) -> None:
    """Whatever is killed when, the end is that of an undisturbed run, and nothing that was finished is made again."""
    _kill(place, lambda: _compare(smoke.place, place), SMOKE, *SPREAD)
    ended = place.process("run", SMOKE, "--run", "last", *SPREAD)
    assert 0 == ended.code, ended.err
    _compare(smoke.place, place)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_a_head_is_killed_at_random_moments(smoke: Smoke, place: Place, tmp_path: Path, kind: str) -> None:
    """Of a run that trains one from nothing and examines it."""
    config = head_config(smoke, tmp_path, {"source": "target", "head": {"kind": kind}})
    words = (config, "--until", "evaluate", "--set", "distill.max_steps=40", "--set", "distill.save_every=5")
    undisturbed = Place(tmp_path / "undisturbed").prepare()
    ended = undisturbed.process("run", *words, MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    _kill(place, lambda: _compare(undisturbed, place), *words, MLFLOW_TRACKING_URI=NOBODY)
    ended = place.process("run", *words, "--run", "last", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    _compare(undisturbed, place)


def _kill(place: Place, compare: Callable[[], None], *words: object, **environment: str) -> None:
    """Runs of these words, each killed. One that finished before was undisturbed at last, and the next begins with nothing."""
    moments, kills, begun = random.Random(0), 0, 0
    while kills < KILLS:
        committed, shards = place.committed(), _shards(place)
        begun += 1
        process = place.start("run", *words, "--run", f"r-{begun}", **environment)
        until = time.monotonic() + moments.uniform(LEAST, MOST)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if process.poll() is None:
            kills += 1
            process.kill()
        _, err = process.communicate()
        assert unchanged(committed, place), err
        assert _kept(shards, place), err
        if process.returncode == 0:  # finished before it was killed: from the beginning once more
            compare()
            shutil.rmtree(place.store)


def _compare(undisturbed: Place, place: Place) -> None:
    """Artifacts of an undisturbed run; a gate after the alias has moved adds its own. No unfinished part is left."""
    expected, found = undisturbed.contents(), place.contents()
    assert expected == {name: seen for name, seen in found.items() if name in expected}
    assert {"gate"} >= {name.partition("-")[0] for name in found if name not in expected}
    assert [] == [*(place.store / "work").iterdir(), *(place.store / "parts").iterdir()]
