"""A worker that is forked, with what this process has imported: a fresh one takes seconds of imports."""

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import IO, Any

from pipeline.store import worker_processes


class ForkedWorker:
    """What `worker_processes` uses of subprocess.Popen."""

    def __init__(self, channel: Connection, environment: Mapping[str, str], output: IO[bytes] | None) -> None:
        heard, said = os.pipe()
        self.stdin = os.fdopen(said, "wb")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._work(heard, os.dup(channel.fileno()), environment, 2 if output is None else output.fileno())
        os.close(heard)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def _work(self, heard: int, channel: int, environment: Mapping[str, str], output: int) -> None:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.close(self.stdin.fileno())
        for source, target in ((heard, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.environ.update(environment)
        _forget_training()
        try:
            worker_processes.work(channel)
        finally:
            os._exit(0)  # without the handlers of the test's process


def _forget_training() -> None:
    """Which this process may have done by itself, before the worker takes part in one of several."""
    if "accelerate.state" in sys.modules:
        state: Any = sys.modules["accelerate.state"]
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.PartialState._reset_state()
