"""Parts on a real Ray cluster of this machine. Needs `understudy[ray]`; `make test-scale` has an environment with it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from pipeline.config.execution import ExecutionConfig, RayConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.running.execution.spread import Spread
from tests.unit.running.execution.other_task import context_of, log_of, make
from tests.unit.running.execution.work import Squares, contents, expected, squares, times, work

Begin = Callable[..., Any]


@pytest.fixture
def context(tmp_path: Path) -> Begin:
    """A stage's context with a store of its own, and two workers on Ray."""
    (tmp_path / "log").mkdir()
    (tmp_path / "store/work/squares-1").mkdir(parents=True)

    def made(**ray: Any) -> Any:
        return context_of(tmp_path / "store", ExecutionConfig(ray=RayConfig(**{"workers": 2} | ray)))

    return made


def test_all_parts_are_made_once(context: Begin) -> None:
    """By two actors, which load once for all lists of parts, with one thread each."""
    here = context()
    with Spread(here, work(Squares(log_of(here), pause=0.2))) as spread:
        assert [0, 0] == [spread.make(squares(count), "squares", "numbers") for count in (4, 8)]

    assert expected(range(8)) == contents(here.out)
    assert (2, 8) == (times(log_of(here), "opened-cpu-1-*"), times(log_of(here), "made-*"))
    assert 2 == len(here.workers)


def test_an_actor_that_dies_is_named_and_its_part_made_again(
    context: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice is an accident."""
    here = context()

    assert 0 == make(here, 6, (3, "kill-2"))
    assert expected(range(6)) == contents(here.out)
    assert (3, 8) == (times(log_of(here), "made-3-*"), times(log_of(here), "made-*"))
    lines = [line for line in capsys.readouterr().err.splitlines() if "while it made 3, which is made again" in line]
    assert ["(1 of 3)", "(2 of 3)"] == [line[-8:] for line in lines]


def test_a_part_that_kills_three_actors_fails_by_its_name(context: Begin) -> None:
    """Ray would go on for ever."""
    here = context()

    with pytest.raises(UnderstudyError, match=r"^4: 3 workers died while they made it"):
        make(here, 5, (4, "kill-9"))
    assert 3 == times(log_of(here), "made-4-*")


@pytest.mark.parametrize(("accident", "kind"), [("usage", UsageError), ("bug", ZeroDivisionError)])
def test_errors_of_an_actor_are_those_of_the_stage(context: Begin, accident: str, kind: type[Exception]) -> None:
    """With their class, and so the exit code; not tried again."""
    here = context()

    with pytest.raises(kind):
        make(here, 3, (1, accident))
    assert 1 == times(log_of(here), "made-1-*")


@pytest.mark.parametrize(
    ("ray", "complaint"),
    [
        ({"gpus": 3}, "execution.ray: this machine lacks what one worker needs: GPU 0 of 3; ask for less"),
        ({"address": "127.0.0.1:1"}, "execution.ray.address = 127.0.0.1:1: no cluster answers there"),
    ],
)
def test_what_ray_cannot_give_is_said_in_one_line(context: Begin, ray: dict[str, Any], complaint: str) -> None:
    """In place of waiting for ever."""
    with pytest.raises(UsageError, match=f"^{complaint}"):
        make(context(**ray), 1)


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a cluster that runs already, with room for one worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=1",
        f"--port={port}",
    ]
    node = subprocess.Popen(
        [*start, "--include-dashboard=false", "--disable-usage-stats"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    yield f"127.0.0.1:{port}"
    node.terminate()  # with all that it has started
    node.wait(60)


def test_workers_without_room_hold_up_no_part(
    context: Callable[..., Any], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers where there is room for one. Without an address it is not joined, whatever the environment says."""
    here = context(address=cluster, workers=3)
    assert 0 == make(here, 6)
    assert expected(range(6)) == contents(here.out)
    assert 6 == times(log_of(here), "made-*")

    monkeypatch.setenv("RAY_ADDRESS", cluster)
    assert 0 == make(context(), 8)
