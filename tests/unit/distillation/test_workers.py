"""Processes of a training: what is said of one that ends, and that none outlives the one that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.config.distill import DistillConfig
from pipeline.config.generate import SamplingConfig
from pipeline.distillation import launchers, worker, workers
from pipeline.distillation.launchers import Launch
from pipeline.distillation.settings import TrainingSettings
from pipeline.distillation.training_task import FILE, TrainingTask
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.store.parsing import format_of
from pipeline.store.processes import running_process


class _Heard(Progress):
    def __init__(self) -> None:
        super().__init__(terminal=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def _run(code: str, control: Any = None) -> list[str]:
    heard = _Heard()
    workers._run([sys.executable, "-c", code], dict(os.environ), control, heard)
    return heard.lines


def test_lines_of_the_workers_are_shown() -> None:
    """Of stdout; what libraries write to stderr is not."""
    assert ["step 1", "step 2"] == _run("import sys; print('step 1'); print('step 2'); print('noise', file=sys.stderr)")


def test_the_first_reason_is_the_error() -> None:
    """A worker that fails breaks the connections of the others, which then fail too."""
    with pytest.raises(UnderstudyError, match=r"^the loss is nan$"):
        _run(
            "import sys; sys.stderr.write('noise\\nunderstudy: the loss is nan\\nunderstudy: process 1\\n'); sys.exit(1)"
        )


def test_a_worker_that_gave_no_reason_shows_its_last_lines() -> None:
    heard = _Heard()
    with pytest.raises(UnderstudyError, match="exit code 3; its last lines are above"):
        workers._run(
            [sys.executable, "-c", "import sys; sys.stderr.write('Traceback\\n'); sys.exit(3)"],
            dict(os.environ),
            None,
            heard,
        )
    assert ["Traceback"] == heard.lines


def test_a_failure_elsewhere_ends_the_worker_here() -> None:
    """Of another process of the launcher."""

    class Control:
        def failure(self) -> str:
            return "no space left"

    began = time.monotonic()
    with pytest.raises(UnderstudyError, match="no space left"):
        _run("import time; time.sleep(600)", Control())
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({0: 1, 1: -9}, "training process 2 of 2 was killed by SIGKILL"),
        ({1: 1, 0: 1}, "training process 1 of 2 has ended with exit code 1"),
        ({0: -signal.SIGTERM, 1: -signal.SIGKILL}, "training process 2 of 2 was killed by SIGKILL"),
        ({0: -signal.SIGTERM, 1: 1}, "training process 2 of 2 has ended with exit code 1"),
    ],
)
def test_a_killed_process_is_named_before_those_that_fail_by_it(codes: dict[int, int], said: str) -> None:
    assert workers._first_end(codes, 2).startswith(f"distill: {said}; checkpoints are kept")


def test_a_worker_ends_with_its_starter() -> None:
    """However the starter ends: the worker's standard input ends with it."""
    waiting = (
        "import time\n"
        "from pipeline.commands.training_process import run\n"
        "run(lambda: (print('up', flush=True), time.sleep(600)))"
    )
    starting = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {waiting!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", starting],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(workers.__file__).parents[2])},
    )
    assert starter.stdout is not None
    assert "up\n" == starter.stdout.readline()
    starter.send_signal(signal.SIGKILL)
    starter.wait()

    assert "" == starter.stdout.read()  # the worker held the other end


def test_what_a_worker_has_started_ends_with_it() -> None:
    """Such as the processes of accelerate's launcher: the one that is left would keep a GPU's memory."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    heard = _Heard()

    class Control:
        def failure(self) -> str | None:
            return "no space left" if heard.lines else None

    with pytest.raises(UnderstudyError, match="no space left"):
        workers._run([sys.executable, "-c", code], dict(os.environ), Control(), heard)  # type: ignore[arg-type]
    (child,) = heard.lines
    until = time.monotonic() + 30
    while running_process(int(child)):
        assert time.monotonic() < until
        time.sleep(0.01)


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
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of what would have been started."""
    found: list[dict[str, str]] = []
    monkeypatch.setattr(workers, "_run", lambda command, environment, control, progress: found.append(environment))
    return found


def test_a_training_is_done_once(task: TrainingTask, started: list[dict[str, str]]) -> None:
    """One process trains itself. Several leave a mark when they have ended, after which the training is only loaded."""
    workers.train_in_processes(task, 1, _Heard())
    assert [] == started
    for _ in range(2):
        workers.train_in_processes(task, 2, _Heard())
    assert 1 == len(started)
    assert task == format_of(TrainingTask).read(task.work / FILE)


def test_a_training_that_failed_is_not_done(task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again, it is started again."""
    started = list[int]()

    def fail(*_: object) -> None:
        started.append(1)
        raise UnderstudyError("killed")

    monkeypatch.setattr(workers, "_run", fail)
    for _ in range(2):
        with pytest.raises(UnderstudyError, match="killed"):
            workers.train_in_processes(task, 2, _Heard())
    assert 2 == len(started)


@pytest.mark.parametrize(("given", "threads"), [(None, "3"), ("5", "5")])
def test_processes_share_the_cores(
    given: str | None,
    threads: str,
    task: TrainingTask,
    started: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the user has said how many threads each computes in."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    workers.train_in_processes(task, 2, _Heard())
    assert threads == started[0]["OMP_NUM_THREADS"]


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


def _place_of(environment: dict[str, str]) -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: environment[name] for name in names}


@pytest.mark.usefixtures("launched")
def test_processes_of_a_launcher_train_together(task: TrainingTask, started: list[dict[str, str]]) -> None:
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
    assert str(task.work / FILE) == told.split(" ", 1)[1]
    assert (True, True) == (first.ended, other.has_left)


@pytest.mark.usefixtures("launched")
def test_a_failure_is_told_to_the_other_processes(task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for this one for ever. The command ends, and so do they."""

    def fail(*_: object) -> None:
        raise UnderstudyError("no space left")

    monkeypatch.setattr(workers, "_run", fail)
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

    monkeypatch.setattr(worker, "join", lambda device: torch.device("cuda", 3))
    monkeypatch.setattr(worker, "training_data", data)
    monkeypatch.setattr(worker, "read_pair", lambda pair, places: pair)
    monkeypatch.setattr(worker, "Training", Training)
    task.write(tmp_path / FILE)
    worker.work(tmp_path / FILE)

    assert (task.completions, SETTINGS, 0.5, task.prompts) == asked[0]
    assert {"shard": False, "prompts": "scored"} == named
    assert [SETTINGS, task.pair, dev] == asked[1:4]
    assert "cuda:3" in asked
    assert [rows, {"answer": 1.0}, task.work] == asked[-3:]


def test_only_the_first_process_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All go through the same steps."""
    for number in (0, 1):
        monkeypatch.setattr(worker, "is_first", lambda number=number: number == 0)
        worker._ToStarter().line(f"step of {number}")
    said = capsys.readouterr()
    assert "step of 0" in said.out + said.err
    assert "step of 1" not in said.out + said.err
