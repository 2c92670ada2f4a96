"""Parts on a Ray cluster that has room for some of the workers, or that is another one than was meant."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.execution import ExecutionConfig, RayConfig
from pipeline.errors import UnderstudyError, UsageError
from tests.unit.running.execution.other_task import context_of, log_of, make
from tests.unit.running.execution.work import contents, expected, times


class RayError(Exception):
    """Base of Ray's errors."""


class FakeRay:
    """A cluster with room for some actors. The others wait for it, and where nothing can answer any more a test fails."""

    def __init__(self, room: int, unreadable: int = 0) -> None:
        self.room, self.unreadable, self.actors, self.options = room, unreadable, list[_Actor](), dict[str, Any]()
        self.exceptions, self.refuses = SimpleNamespace(RayError=RayError), None

    def init(self, **options: Any) -> None:
        self.options = options
        if self.refuses is not None:
            raise self.refuses

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *args: _Actor(self, kind(*args))))

    def wait(self, answers: list["_Answer"], timeout: float | None = None) -> tuple[list["_Answer"], list["_Answer"]]:
        ready = [answer for answer in answers if answer.is_ready()][:1]
        assert ready or timeout == 0, "waits for ever"
        return ready, [answer for answer in answers if answer not in ready]

    def get(self, answer: "_Answer") -> Any:
        if isinstance(answer.result, RayError):
            raise answer.result
        return answer.result

    def kill(self, actor: "_Actor") -> None:
        if actor in self.actors:
            self.actors.remove(actor)

    def shutdown(self) -> None:
        self.actors.clear()


class _Actor:
    def __init__(self, ray: FakeRay, what: Any) -> None:
        self.ray, self.what = ray, what
        ray.actors.append(self)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: _Answer(self, name, args))


class _Answer:
    def __init__(self, actor: _Actor, method: str, args: tuple[Any, ...]) -> None:
        self.actor, self.method, self.args, self.done, self.result = actor, method, args, False, None

    def is_ready(self) -> bool:
        ray = self.actor.ray
        if not self.done and self.actor in ray.actors[: ray.room]:
            self.done = True
            if self.method == "make" and ray.unreadable:
                ray.unreadable -= 1
                self.result = RayError("cannot be read on this node")
            else:
                self.result = getattr(self.actor.what, self.method)(*self.args)
        return self.done


@pytest.fixture
def context(tmp_path: Path) -> Callable[[int], Any]:
    """A stage's context, for so many workers on Ray."""
    (tmp_path / "log").mkdir()
    (tmp_path / "store/work/squares-1").mkdir(parents=True)
    return lambda workers: context_of(tmp_path / "store", ExecutionConfig(ray=RayConfig(workers=workers)))


def _ray(monkeypatch: pytest.MonkeyPatch, fake: FakeRay) -> FakeRay:
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.mark.parametrize(("room", "workers", "parts"), [(1, 4, 9), (2, 3, 3), (1, 2, 2), (3, 3, 1)])
def test_workers_without_room_hold_up_no_part(
    context: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, room: int, workers: int, parts: int
) -> None:
    """Those that are there make all parts, each once: a cluster may never have room for the others."""
    ray, here = _ray(monkeypatch, FakeRay(room)), context(workers)

    assert 0 == make(here, parts)
    assert expected(range(parts)) == contents(here.out)
    assert parts == times(log_of(here), "made-*")
    assert [] == ray.actors


def test_an_actor_that_cannot_read_what_it_is_sent_is_not_left_behind(
    context: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its GPU, for which the next one waits. Three such errors end the stage."""
    here = context(1)
    _ray(monkeypatch, FakeRay(1, unreadable=2))
    assert 0 == make(here, 2)
    assert expected(range(2)) == contents(here.out)

    _ray(monkeypatch, FakeRay(1, unreadable=9))
    with pytest.raises(UnderstudyError, match=r"^2: 3 workers died while they made it"):
        make(here, 3)


def test_without_an_address_no_other_cluster_is_joined(
    context: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray joins one that runs on this machine, or that RAY_ADDRESS names, unless the address is `local`."""
    ray = _ray(monkeypatch, FakeRay(1))
    make(context(1), 1)

    assert ("local", 2) == (ray.options["address"], ray.options["num_cpus"])


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_what_ray_says_is_said_in_one_line(
    context: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Such as another version of Ray or Python on the cluster."""
    _ray(monkeypatch, FakeRay(1)).refuses = error("Version mismatch: Ray 2.9\nand more")  # type: ignore[assignment]
    with pytest.raises(
        UsageError, match=r"^execution\.ray\.address = null: Ray cannot be used: Version mismatch: Ray 2\.9$"
    ):
        make(context(1), 1)
