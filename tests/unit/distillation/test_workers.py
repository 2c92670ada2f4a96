"""Processes of a training: which they are, what is said of them, and what of one that ends."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.config.distill import DistillConfig
from pipeline.config.generate import SamplingConfig
from pipeline.distillation import launchers, workers
from pipeline.distillation import task as task_module
from pipeline.distillation.launchers import Launch
from pipeline.distillation.processes import MEETING
from pipeline.distillation.settings import TASK, TrainingSettings, TrainingTask
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.store.parsing import format_of
from pipeline.store.worker_processes import Ended, Failed
from tests.unit.distillation import trainings


class _Heard(Progress):
    def __init__(self) -> None:
        super().__init__(terminal=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


PLACES = [dict(os.environ) | {"RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]


def _train(worker: Any, monkeypatch: pytest.MonkeyPatch, heard: _Heard, control: Any = None) -> list[str]:
    monkeypatch.setattr(workers, "take_part", worker)
    workers._train(Path("task"), PLACES, control, heard)
    return heard.lines


def test_lines_of_the_workers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What libraries print is not."""
    assert ["step 0", "step 1"] == sorted(_train(trainings.say_two, monkeypatch, _Heard()))


def test_a_worker_that_gave_no_reason_shows_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and the others end."""
    heard = _Heard()
    with pytest.raises(
        UnderstudyError, match=r"^distill: training process 2 of 2 has ended with exit code 3; checkpoint"
    ):
        _train(trainings.end_without_reason, monkeypatch, heard)
    assert ["Fatal error"] == heard.lines


def test_a_failure_elsewhere_ends_the_workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another process of the launcher."""
    heard = _Heard()

    class Control:
        def failure(self) -> str | None:
            return "no space left" if heard.lines else None

    with pytest.raises(UnderstudyError, match="no space left"):
        _train(trainings.wait_for_ever, monkeypatch, heard, Control())


def _failed(error: Exception, at: float) -> Failed:
    return replace(Failed.by(error), at=at)


NAN, LOST = UnderstudyError("the loss is nan"), RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("wrong", "elsewhere", "said"),
    [
        ([Ended(1), Ended(-9)], None, "distill: b was killed by SIGKILL; checkpoints are kept"),
        (
            [_failed(LOST, 1.0), Ended(-9)],
            "Connection closed",
            "distill: b was killed by SIGKILL; checkpoints are kept",
        ),
        ([Ended(-signal.SIGTERM), Ended(-9)], None, "distill: b was killed by SIGKILL"),
        ([Ended(-signal.SIGTERM), Ended(3)], None, "distill: b has ended with exit code 3"),
        ([_failed(LOST, 2.0), _failed(NAN, 1.0)], None, "the loss is nan"),
        ([_failed(NAN, 1.0), Ended(-signal.SIGABRT)], None, "the loss is nan"),
        ([_failed(LOST, 2.0), _failed(ZeroDivisionError("a bug"), 1.0)], None, "a bug"),
        ([_failed(LOST, 1.0)], "no space left", "no space left"),
    ],
)
def test_the_error_is_that_of_the_worker_that_failed_first(
    wrong: list[Failed | Ended], elsewhere: str | None, said: str
) -> None:
    """It breaks the connections of the others, which then fail too."""
    assert str(workers._first_error(dict(zip("ab", wrong, strict=False)), elsewhere)).startswith(said)


SETTINGS = TrainingSettings(
    distill=DistillConfig(),
    rounds=None,
    sampling=SamplingConfig(),
    draft_sampling="probabilistic",
    batch_tokens=64,
    dtype="float32",
    seed=0,
)


@pytest.fixture
def task(tmp_path: Path) -> TrainingTask:
    return TrainingTask(
        settings=SETTINGS,
        pair=tmp_path / "pair",
        places={},
        completions=tmp_path / "completions",
        share=0.5,
        prompts=tmp_path / "prompts",
        work=tmp_path / "work",
        device="cpu",
        trust_remote_code=False,
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """The environments of what would have been started."""
    found: list[Mapping[str, str]] = []
    monkeypatch.setattr(workers, "_train", lambda task, places, control, progress: found.extend(places))
    return found


def test_a_training_is_done_once(task: TrainingTask, started: list[Mapping[str, str]]) -> None:
    """One process trains itself. Several leave a mark when they have ended, after which the training is only loaded."""
    workers.train_in_processes(task, 1, _Heard())
    assert [] == started
    for _ in range(2):
        workers.train_in_processes(task, 2, _Heard())
    assert ["0", "1"] == [environment["RANK"] for environment in started]
    assert task == format_of(TrainingTask).read(task.work / TASK)


def test_a_training_that_failed_is_not_done(task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again, it is started again."""
    started = list[int]()

    def fail(*_: object) -> None:
        started.append(1)
        raise UnderstudyError("killed")

    monkeypatch.setattr(workers, "_train", fail)
    for _ in range(2):
        with pytest.raises(UnderstudyError, match="killed"):
            workers.train_in_processes(task, 2, _Heard())
    assert 2 == len(started)


@pytest.mark.parametrize(("given", "threads"), [(None, "3"), ("5", "5")])
def test_processes_share_the_cores(
    given: str | None,
    threads: str,
    task: TrainingTask,
    started: list[Mapping[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the user has said how many threads each computes in."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    workers.train_in_processes(task, 2, _Heard())
    assert threads == started[0]["OMP_NUM_THREADS"]


def test_processes_of_one_machine_are_told_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They meet at a file that is theirs, and talk where no other machine hears them, unless the user has chosen a network."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    places = workers._places_here(2, tmp_path / "meeting")
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        MEETING,
    )
    assert [[rank, rank, "2", "2", "lo", "eth1", str(tmp_path / "meeting")] for rank in "01"] == [
        [place[name] for name in names] for place in places
    ]


class _Told:
    """A control that only notes what it is told."""

    def __init__(self, *tasks: str) -> None:
        self.tasks, self.told, self.failed, self.ended, self.has_left = list(tasks), list[str](), "", False, False
        self.met = False

    def meet(self) -> None:
        assert not self.told, "before they are told"
        self.met = True

    def tell(self, task: str) -> None:
        assert self.met
        self.told.append(task)

    def next_task(self) -> str | None:
        return self.tasks.pop(0) if self.tasks else None

    def fail(self, reason: str) -> None:
        self.failed = reason

    def end(self) -> None:
        self.ended = True

    def left(self) -> None:
        self.has_left = True


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of six processes of a launcher on three machines."""
    launch = Launch(rank=5, size=6, local_rank=1, address="node1", port=1, agent=False, attempt="0")
    monkeypatch.setattr(launchers, "_current", [launch])


def _place_of(environment: Mapping[str, str]) -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: environment[name] for name in names}


@pytest.mark.usefixtures("launched")
def test_processes_of_a_launcher_train_together(task: TrainingTask, started: list[Mapping[str, str]]) -> None:
    """The first tells the others where they meet and what to train; each starts its worker in its own place."""
    first = _Told()
    with workers.leading(first):  # type: ignore[arg-type]
        workers.train_in_processes(task, 6, _Heard())
        assert not first.ended
    (told,) = first.told
    other = _Told(told)
    workers.serve(other)  # type: ignore[arg-type]

    own = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": told.split()[0]}
    assert [own, own] == [_place_of(environment) for environment in started]
    assert str(task.work / TASK) == told.split(" ", 1)[1]
    assert (True, True) == (first.ended, other.has_left)


@pytest.mark.usefixtures("launched")
def test_a_failure_is_told_to_the_other_processes(task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for this one for ever. The command ends, and so do they."""

    def fail(*_: object) -> None:
        raise UnderstudyError("no space left")

    monkeypatch.setattr(workers, "_train", fail)
    first, other = _Told(), _Told("1 task")
    with pytest.raises(UnderstudyError, match="no space left"), workers.leading(first):  # type: ignore[arg-type]
        workers.train_in_processes(task, 6, _Heard())
    with pytest.raises(UnderstudyError, match="no space left"):
        workers.serve(other)  # type: ignore[arg-type]
    assert (["no space left"] * 2, True) == ([first.failed, other.failed], first.ended)


def test_a_worker_trains_what_its_task_says(
    task: TrainingTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The share of a learning curve, its rows and prompts, on the device that it has joined with."""
    asked, named = list[Any](), dict[str, Any]()
    rows, dev = object(), object()

    class Training:
        def __init__(self, *given: Any, **more: Any) -> None:
            asked.extend(given)
            named.update(more)

        def __getattr__(self, name: str) -> Any:
            return lambda *given: asked.extend(given)

    def data(*given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(train=None, rows=rows, prompts="scored", weights={"answer": 1.0}, dev=dev)

    monkeypatch.setattr(task_module, "join", lambda device: torch.device("cuda", 3))
    monkeypatch.setattr(task_module, "training_data", data)
    monkeypatch.setattr(task_module, "read_pair", lambda pair, places: pair)
    monkeypatch.setattr(task_module, "Training", Training)
    task.write(tmp_path / TASK)
    task_module.work(tmp_path / TASK, lambda line: None)

    assert (task.completions, SETTINGS, 0.5, task.prompts) == asked[0]
    assert {"shard": False, "prompts": "scored"} == named
    assert [SETTINGS, task.pair, dev] == asked[1:4]
    assert "cuda:3" in asked
    assert [rows, {"answer": 1.0}, task.work] == asked[-3:]


def test_only_the_first_process_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """All go through the same steps."""
    sent = list[str]()
    for number in (0, 1):
        monkeypatch.setattr(task_module, "is_first", lambda number=number: number == 0)
        task_module._Sent(sent.append).line(f"step of {number}")
    assert ["step of 0"] == sent
