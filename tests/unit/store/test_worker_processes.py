"""Workers: what is heard of them, that none is left, and errors on their way to whoever started them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import UsageError
from pipeline.store.processes import running_process
from pipeline.store.worker_processes import Ended, Failed, Worker, ready


class _Unreadable(Exception):
    """It can be sent, and not read again."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class _Unsendable(Exception):
    """It holds what cannot be sent."""

    def __init__(self) -> None:
        super().__init__("not sent")
        self.held = lambda: None


def _sent(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return Failed.by(raised).error()


def test_a_mistake_of_a_user_is_sent_as_it_is() -> None:
    """In one line, without the worker's traceback."""
    found = _sent(UsageError("batch = 9: does not fit"))

    assert (UsageError, "batch = 9: does not fit") == (type(found), str(found))
    assert found.__cause__ is None


@pytest.mark.parametrize(
    ("error", "kind", "last"),
    [
        (ZeroDivisionError("a bug"), ZeroDivisionError, "ZeroDivisionError: a bug"),
        (_Unreadable(1, 2), RuntimeError, "_Unreadable: 1 and 2"),
        (_Unsendable(), RuntimeError, "_Unsendable: not sent"),
    ],
    ids=["sent", "cannot be read", "cannot be sent"],
)
def test_a_bug_keeps_the_traceback_of_its_worker(error: Exception, kind: type[Exception], last: str) -> None:
    """Also where the error itself is one of a library that cannot be sent, as some of CUDA are."""
    found = _sent(error)
    said = "".join(traceback.format_exception(found))

    assert kind is type(found)
    assert last in said
    assert "in _sent" in said


def talk(connection: Connection, how: str) -> None:
    """A worker: prints, says what it was told, and ends so."""
    print("noise", flush=True)
    connection.send((connection.recv(), os.environ["WHO"]))
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    if how == "mistake":
        raise UsageError("cannot be made")


@pytest.fixture(scope="module")
def heard() -> dict[str, list[Any]]:
    """What workers say that end in different ways, and at last what all of them print."""
    with tempfile.TemporaryFile() as output:
        workers = {
            Worker(talk, how, environment=dict(os.environ) | {"WHO": how}, output=output): how
            for how in ("done", "killed", "exit", "mistake")
        }
        said: dict[str, list[Any]] = {how: [] for how in workers.values()}
        for worker in workers:
            worker.send("a word")
        left = set(workers)
        while left:
            for worker in ready(left):
                said[workers[worker]].append(worker.next())
                if isinstance(said[workers[worker]][-1], Ended):
                    left.remove(worker)
        for worker in workers:
            worker.end()
        output.seek(0)
        return said | {"output": output.read().split()}


def test_a_worker_is_heard_until_it_has_ended(heard: dict[str, list[Any]]) -> None:
    """With the code of its end; an error is its last message."""
    assert [("a word", "done"), Ended(0)] == heard["done"]
    assert [("a word", "killed"), Ended(-9)] == heard["killed"]
    assert [("a word", "exit"), Ended(3)] == heard["exit"]
    assert ("was killed by SIGKILL", "has ended with exit code 3") == (str(Ended(-9)), str(Ended(3)))
    said, failed, ended = heard["mistake"]
    assert (("a word", "mistake"), Ended(1)) == (said, ended)
    assert isinstance(failed.error(), UsageError)


def test_what_workers_print_is_kept_apart(heard: dict[str, list[Any]]) -> None:
    """No result of the command on stdout has lines of a library among it."""
    assert [b"noise"] * 4 == heard["output"]


def start_another(connection: Connection, dies: bool = False) -> None:
    """A worker that starts a process, and may die without it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    connection.send((os.getpid(), child.pid))
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def _are_gone(*processes: int) -> None:
    until = time.monotonic() + 30
    while any(map(running_process, processes)):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_worker_has_started_ends_with_it(dies: bool) -> None:
    """A process that is left would keep a GPU's memory."""
    worker = Worker(start_another, dies, environment=os.environ)
    both = worker.next()
    if dies:
        assert Ended(-9) == worker.next()
    worker.end()
    _are_gone(*both)


def test_a_worker_ends_with_its_starter() -> None:
    """However that ends, and with what it has started."""
    code = (
        "import os, time\n"
        "from pipeline.store.worker_processes import Worker\n"
        "from tests.unit.store.test_worker_processes import start_another\n"
        "print(*Worker(start_another, environment=os.environ).next(), flush=True)\n"
        "time.sleep(600)"
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(pipeline.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout is not None
        worker_and_child = map(int, starter.stdout.readline().split())
        starter.kill()
    _are_gone(*worker_and_child)


def test_what_cannot_be_sent_starts_no_worker() -> None:
    """Nothing waits for it."""
    held: Callable[[], None] = lambda: None  # noqa: E731
    before = set(_children())
    with pytest.raises(Exception, match="pickle"):
        Worker(talk, held, environment=os.environ)
    assert before == set(_children())


def _children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
