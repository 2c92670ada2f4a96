"""Parts made by several processes of this machine, one a GPU where there are several.

Python's own pools do not fit: where a worker dies, `concurrent.futures` gives up all work and does not say which part it was.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pipeline
from pipeline.running.execution.driver import Driver
from pipeline.running.execution.parts import Make, Part, Work
from pipeline.running.execution.worker_errors import packed, unpacked
from pipeline.running.execution.worker_facts import WorkerFacts, own_facts

_ROOT = str(Path(pipeline.__file__).resolve().parents[1])
_END_SECONDS = 5.0
_THREADS = "OMP_NUM_THREADS"
# What a worker says: its part advances, is done, or has failed.
_ADVANCED, _DONE, _FAILED = "advanced", "done", "failed"


class LocalProcesses:
    """A process for each of `devices`, started with its first part. Each loads what the parts need once."""

    def __init__(self, work: Work[Any], devices: Sequence[str]) -> None:
        threads = max(1, _processors() // len(devices))
        self._workers = [_Worker(number, work, device, threads) for number, device in enumerate(devices, 1)]

    def make(self, driver: Driver) -> None:
        while True:
            given = [
                (worker, part)
                for worker in self._workers
                if worker.part is None and (part := driver.next()) is not None
            ]
            for worker, _ in given:  # all at once: each reads its part only when it has imported what it needs
                worker.start()
            for worker, part in given:
                worker.begin(part, driver.staging)
            busy = {
                worker.connection: worker
                for worker in self._workers
                if worker.part is not None and worker.connection is not None
            }
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)  # what it was given
                busy[ready].listen(driver)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()

    def facts(self) -> list[WorkerFacts]:
        return [worker.facts for worker in self._workers if worker.facts is not None]


class _Worker:
    """One process, which is started again after it has died."""

    def __init__(self, number: int, work: Work[Any], device: str, threads: int) -> None:
        self._number, self._work, self._device, self._threads = number, work, device, threads
        self._process: Any = None
        self.connection: Connection | None = None
        self.part: Part[Any] | None = None
        self.facts: WorkerFacts | None = None

    def begin(self, part: Part[Any], staging: Path) -> None:
        """Send a part. A worker that has died in the meantime is noticed when it is listened to."""
        assert self.connection is not None  # started
        self.part = part
        with contextlib.suppress(BrokenPipeError):
            self.connection.send((part.content(), staging))

    def listen(self, driver: Driver) -> None:
        """Do what the next message asks for. Raises what the worker raised."""
        assert self.connection is not None  # it has a part
        assert self.part is not None
        try:
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._mourn(driver)
            return
        if kind == _ADVANCED:
            driver.advance(self.part, content)
        elif kind == _DONE:
            part, self.part, self.facts = self.part, None, content
            driver.finished(part)
        else:
            raise unpacked(*content)

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        if self._process.pid is not None:  # else its start was interrupted
            self._process.terminate()
            self._process.join(_END_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._forget()

    def start(self) -> None:
        """Start the process, if there is none."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
        self.connection, others = context.Pipe()
        with _surroundings_of_worker(self._threads):
            self._process = context.Process(
                target=_serve,
                args=(others, self._work, self._device),
                name=f"worker {self._number}",
                daemon=True,
            )
            self._process.start()
        others.close()  # so that the worker's end is the only one, and its death ends the connection

    def _mourn(self, driver: Driver) -> None:
        self._process.join()
        who, code = f"worker {self._number} (process {self._process.pid})", self._process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._forget()
        part, self.part = self.part, None
        assert part is not None  # it died with one
        driver.died(part, who, how)

    def _forget(self) -> None:
        assert self.connection is not None
        self.connection.close()
        self._process.close()
        self._process = self.connection = None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _surroundings_of_worker(threads: int) -> Iterator[None]:
    """What a process inherits that is started inside. It finds these packages first, as the command does; computes in its share
    of the threads, where the user has not said in how many; and does not see Ctrl-C, which is the command's business."""
    resource_tracker.ensure_running()  # before: it unblocks the signal once it has started
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    is_set = _THREADS in os.environ
    sys.path.insert(0, _ROOT)
    os.environ.setdefault(_THREADS, str(threads))
    try:
        yield
    finally:
        sys.path.remove(_ROOT)
        if not is_set:
            del os.environ[_THREADS]
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(connection: Connection, work: Work[Any], device: str) -> None:
    """A worker: make one part after another, until the process that started it has ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    make: Make[Any] | None = None
    while True:
        try:
            content, out = connection.recv()
        except EOFError:
            return
        try:
            if make is None:
                make = work.open(work.task, device)
            make(content, out, partial(_advance, connection))
        except Exception as error:
            connection.send((_FAILED, packed(error)))
            continue
        connection.send((_DONE, own_facts(device)))


def _advance(connection: Connection, amount: float) -> None:
    connection.send((_ADVANCED, amount))


def _end_with_parent() -> None:
    """Also where it was killed, and however long a part takes."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    wait([parent.sentinel])
    os._exit(1)
