"""What is asked of Ray, and what is made of its answers, by a Ray that is none; the real one: `make test-scale`."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.config.execution import ExecutionConfig, RayConfig
from pipeline.distillation.workers import _free_port
from pipeline.errors import UnderstudyError, UsageError
from pipeline.running.environment import WorkerFacts
from pipeline.running.execution import ray_cluster
from pipeline.running.execution.ray_cluster import RayActors
from tests.unit.running.execution.other_task import context_of, log_of, make
from tests.unit.running.execution.work import contents, expected, times


class _RayError(Exception):
    """As Ray raises where an actor, or its node, is lost."""


class _Actor:
    """An actor, which works when it is asked for its answer. `lose`: whether it dies with this part."""

    def __init__(self, inner: Any, lose: Callable[[Any], bool]) -> None:
        def remote(content: Any, out: Path) -> Any:
            return lambda: self._make(inner, content, out, lose)

        self.make, self.is_lost = SimpleNamespace(remote=remote), False
        self.begin = SimpleNamespace(remote=lambda: lambda: None)

    def _make(self, inner: Any, content: Any, out: Path, lose: Callable[[Any], bool]) -> Any:
        self.is_lost = self.is_lost or lose(content)
        if self.is_lost:
            raise _RayError("The actor died\n unexpectedly")
        return inner.make(content, out)


class _Ray(ModuleType):
    """What is used of Ray. The newest answer is ready first."""

    exceptions = SimpleNamespace(RayError=_RayError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.actors, self.options, self.inits, self.killed, self.shutdowns = list[_Actor](), [], [], list[_Actor](), 0
        self.losses: dict[int, int] = {}  # by number: how many actors are still lost with it
        self.has = {"CPU": 8.0}

    def remote(self, kind: Any) -> Any:
        def start(*given: Any) -> _Actor:
            self.actors.append(_Actor(kind(*given), self._lose))
            return self.actors[-1]

        def options(**given: Any) -> Any:
            self.options.append(given)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def _lose(self, number: int) -> bool:
        self.losses[number] = self.losses.get(number, 0) - 1
        return self.losses[number] >= 0

    def init(self, **given: Any) -> None:
        self.inits.append(given)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def wait(self, answers: list[Any], timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        return answers[-1:], answers[:-1]

    def get(self, answer: Any) -> Any:
        return answer()

    def kill(self, actor: _Actor) -> None:
        self.killed.append(actor)

    def cluster_resources(self) -> dict[str, float]:
        return self.has

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> _Ray:
    found = _Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "log").mkdir()
    (tmp_path / "store/work/squares-1").mkdir(parents=True)
    return lambda **settings: context_of(tmp_path / "store", ExecutionConfig(ray=RayConfig(**settings)))


def test_parts_are_made_by_actors(ray: _Ray, context: Callable[..., Any]) -> None:
    """Each loads once; at the end all are ended, and so is the cluster of this machine. The command's signals are its own."""
    before = signal.getsignal(signal.SIGTERM)
    here, ray.has = context(workers=3, cpus=1.5, resources={"a100": 1}), {"CPU": 8.0, "a100": 3.0}

    assert 0 == make(here, 7)
    assert expected(range(7)) == contents(here.out)
    assert (7, 3, 3) == (times(log_of(here), "made-*"), times(log_of(here), "opened-cpu-*"), len(ray.actors))
    assert ({*ray.actors}, 1, before) == ({*ray.killed}, ray.shutdowns, signal.getsignal(signal.SIGTERM))
    wanted = {"num_cpus": 1.5, "num_gpus": 0, "resources": {"a100": 1}, "max_restarts": 0, "max_task_retries": 0}
    assert [wanted] * 3 == ray.options
    (init,) = ray.inits
    assert (6, "local") == (init["num_cpus"], init["address"])  # 4.5 of the workers, and one more


def test_where_nothing_is_missing_no_cluster_is_asked(ray: _Ray, context: Callable[..., Any]) -> None:
    here = context()
    for number in range(2):
        (here.out / f"{number}.b").touch()

    assert 0 == make(here, 2)
    assert ([], 0) == (ray.inits, ray.shutdowns)


def test_a_lost_actor_is_replaced_and_its_part_made_again(
    ray: _Ray, context: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line; with the third loss of one part the stage ends."""
    ray.losses = {1: 2}
    here = context(workers=2)

    assert 0 == make(here, 3)
    assert expected(range(3)) == contents(here.out)
    assert 4 == len(ray.actors)
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert ["(1 of 3)", "(2 of 3)"] == [line[-8:] for line in warned]
    assert all("died (The actor died unexpectedly) while it made 1" in line for line in warned)

    ray.losses = {4: 3}
    with pytest.raises(UnderstudyError, match=r"^4: 3 workers died"):
        make(here, 5)
    assert not (here.out / "4.b").exists()


@pytest.mark.parametrize(("accident", "kind"), [("usage", UsageError), ("bug", ZeroDivisionError)])
def test_an_error_of_an_actor_is_that_of_the_stage(
    accident: str, kind: type[Exception], ray: _Ray, context: Callable[..., Any]
) -> None:
    """It is not tried again, and the cluster ends."""
    here = context()
    with pytest.raises(kind):
        make(here, 3, (1, accident))
    assert (1, 1) == (times(log_of(here), "made-1-*"), ray.shutdowns)


def test_what_ray_is_asked_wrongly_is_no_death(ray: _Ray, context: Callable[..., Any]) -> None:
    """A defect of ours must not look like a node that was lost, three times."""
    ray.get = lambda answer: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        make(context(), 1)
    assert 1 == len(ray.actors)


def test_a_node_must_have_this_version_and_see_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by the actor, and by the node's name."""
    work: Any = SimpleNamespace(open=lambda task, device: lambda content, out, advance: None, task=None)
    found = ray_cluster._Actor(work, "cpu", "0.0.9").make(1, tmp_path)
    assert not isinstance(found, WorkerFacts)
    with pytest.raises(UsageError, match=r"has Understudy .*, and the command 0\.0\.9; install the same version"):
        raise found.error()
    own = ray_cluster._Actor(work, "cpu", ray_cluster._version())
    assert isinstance(own.make(1, tmp_path), WorkerFacts)
    found = own.make(1, tmp_path / "elsewhere")
    assert not isinstance(found, WorkerFacts)
    with pytest.raises(UsageError, match="every node must see the store at this path"):
        raise found.error()


@pytest.mark.parametrize(
    ("device", "gpus", "expected"), [("auto", 0, "cpu"), ("auto", 1, "auto"), ("cuda", 1, "cuda"), ("cpu", 0, "cpu")]
)
def test_workers_without_a_gpu_are_on_the_cpu(ray: _Ray, device: str, gpus: float, expected: str) -> None:
    """Ray hides the GPUs of its nodes from them only by a variable."""
    place = RayActors(None, device, RayConfig(gpus=gpus), None)  # type: ignore[arg-type]
    assert [expected] == [worker._device for worker in place._workers]


def test_a_machine_without_room_is_refused_and_a_cluster_waited_for(
    ray: _Ray, context: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray would wait for ever, in silence."""
    with pytest.raises(UsageError, match=r"this machine lacks what one worker needs: GPU 0 of 1; ask for less"):
        make(context(gpus=1), 1)
    assert 0 == make(context(gpus=1, address="auto"), 1)
    assert "lacks what one worker needs: GPU 0 of 1; waiting for nodes" in capsys.readouterr().err
    assert {"address": "auto", "runtime_env": {}} == {name: ray.inits[-1][name] for name in ("address", "runtime_env")}


@pytest.mark.parametrize("form", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_an_address_where_nobody_answers_is_said_at_once(form: str, ray: _Ray, context: Callable[..., Any]) -> None:
    """Ray would try for minutes."""
    with pytest.raises(UsageError, match=r"execution\.ray\.address = .*: no cluster answers there"):
        make(context(address=form.format(_free_port())), 1)
    assert [] == ray.inits


def test_a_cluster_that_refuses_is_said_in_one_line(ray: _Ray, context: Callable[..., Any]) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify")

    ray.init = refuse  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"= auto: Ray cannot be used: Could not find any running Ray instance\.$"):
        make(context(address="auto"), 1)
