"""Workers: processes of this machine, each of which calls one function, for a training and for the parts of a stage.

A worker is in a session of its own: Ctrl-C is the business of whoever started it, who ends it with all that it has started. It
ends when its standard input does, so none outlives the process that started it, however that ends. Python's own pools do not fit:
where a worker dies, `concurrent.futures` gives up all work and does not report which part it was. Does not depend on what workers
do.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from pipeline.errors import EXIT_FAILURE, UnderstudyError
from pipeline.store.own_files import reads_own_files
from pipeline.store.programs import end_session

_ROOT = Path(__file__).parents[2]
_WORKER = "import sys; from pipeline.store.worker_processes import work; work(int(sys.argv[1]))"


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment_of_each(count: int) -> dict[str, str]:
    """The environment of each of `count` workers: they divide the processors, where the user has not set the threads of each."""
    return {"OMP_NUM_THREADS": str(max(1, processors() // count))} | dict(os.environ)


@dataclass(frozen=True)
class Failed:
    """The last message of a worker: what it has raised, and its traceback, which is all that is left of what cannot be sent."""

    content: bytes
    text: str
    at: float = field(default_factory=time.monotonic)  # the same clock in all processes of a machine

    @classmethod
    @reads_own_files("an error of a worker, in its own process")
    def by(cls, error: Exception) -> "Failed":
        text = "".join(traceback.format_exception(error))
        try:
            content = pickle.dumps(error)
            pickle.loads(content)
        except Exception:  # pickle raises what the error's own methods raise
            return cls(b"", text)
        return cls(content, text)

    @reads_own_files("an error of a worker, through a pipe or Ray")
    def error(self) -> Exception:
        """The error to raise. That of a user is shown in one line, as elsewhere; any other has the worker's traceback as its
        cause."""
        error = pickle.loads(self.content) if self.content else RuntimeError("in a worker")
        if not isinstance(error, UnderstudyError):
            error.__cause__ = RuntimeError(f"in a worker:\n{self.text}")
        assert isinstance(error, Exception)
        return error


@dataclass(frozen=True)
class Ended:
    """A worker has ended and sends nothing more. `code`: as of subprocess, negative of a signal."""

    code: int

    def __str__(self) -> str:
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"has ended with exit code {self.code}"


class Worker:
    """One worker."""

    def __init__(
        self,
        function: Callable[..., None],
        *given: Any,
        environment: Mapping[str, str],
        output: IO[bytes] | None = None,
    ) -> None:
        """Start a process that calls `function(connection, *given)`: a function of a module, which the process imports.
        `output`: a file for what it prints; by default that goes to the standard error of this process."""
        self._connection, others = Pipe()
        try:
            self._process = _start(others, environment, output)
        finally:
            others.close()  # so that the worker's end is the only one, and its death ends the connection
        self.pid = self._process.pid
        try:
            self.send((function, given))
        except BaseException:
            self.end()
            raise

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, content: Any) -> None:
        """Send the worker a value for its `connection.recv()`. That a worker has died in the meantime is the answer of `next`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(content)

    def next(self) -> Any:
        """What it has sent; Failed after it has raised an error; Ended once there is nothing more."""
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            if self._process.returncode is None:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # with its own code, before `end_session` kills
            return Ended(end_session(self._process))

    def end(self) -> None:
        """End it with all that it has started, also in the middle of its work."""
        self._connection.close()
        end_session(self._process)


def ready(workers: Iterable[Worker], seconds: float | None = None) -> list[Worker]:
    """Those of the workers whose `next` has an answer: at least one; after so many seconds perhaps none."""
    return list(wait(workers, seconds))  # type: ignore[arg-type]  # it asks them for their `fileno`


def _start(channel: Connection, environment: Mapping[str, str], output: IO[bytes] | None) -> "subprocess.Popen[bytes]":
    """`pipeline` is this package in the worker, whatever lies in the current directory."""
    path = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _WORKER, str(channel.fileno())],
        env={**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        stdin=subprocess.PIPE,
        stdout=2 if output is None else output,
        stderr=output,
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


def work(descriptor: int) -> None:
    """What the process of a worker does; `descriptor`: of its end of the connection."""
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_input, daemon=True).start()
    connection = Connection(descriptor)
    try:
        function, given = connection.recv()
        function(connection, *given)
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(Failed.by(error))
        # Without the handlers at a Python exit, which wait for the other processes of a training.
        os._exit(EXIT_FAILURE)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)  # itself, and what it has started
