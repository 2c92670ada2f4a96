"""The smoke run of the integration tests, and what the long tests do to running commands. Needs minutes, no network."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.running.jobs import jobs_of
from tests.integration.conftest import SMOKE, Place, copy_place, loop, place, smoke

__all__ = ["loop", "place", "smoke"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)


def beginning_of(job: str) -> str:
    """The line on stderr with which a job begins."""
    return f"{job}: {next(one.summary for one in jobs_of(load_config(SMOKE)) if one.id == job)}"


def start_until(place: Place, line: str, *arguments: object) -> tuple[subprocess.Popen[str], list[str]]:
    """A run, begun and followed until it prints `line`, or to its end if it never does; and the lines it printed."""
    process = place.start("run", SMOKE, *arguments)
    seen = []
    assert process.stderr is not None
    for line_read in process.stderr:
        seen.append(line_read.rstrip("\n"))
        if seen[-1] == line:
            break
    return process, seen


def start_until_true(place: Place, condition: Callable[[], bool], *arguments: object) -> subprocess.Popen[str]:
    """A run, begun and followed until `condition` holds; fails if the run ends before."""
    process = place.start("run", SMOKE, *arguments)
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"the run ended before: {process.communicate()[1]}")
        time.sleep(0.005)
    return process


def without_registry(source: Place, root: Path) -> Place:
    """A copy of a store whose runs and registry are gone: artifacts alone."""
    copied = copy_place(source, root)
    for name in ("mlflow", "runs"):
        shutil.rmtree(copied.store / name)
    return copied


def unchanged(before: dict[str, tuple[int, int]], place: Place) -> bool:
    """Whether everything that was committed before still is, and was not made again."""
    now = place.committed()
    return all(now.get(name) == seen for name, seen in before.items())
