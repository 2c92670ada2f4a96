"""Parts made on this machine: in this process one after another, or by several processes, one a GPU where there are several."""

from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from pipeline.running.environment import WorkerFacts, own_facts
from pipeline.running.execution.driver import Driver
from pipeline.running.parts import Make, Part, Work
from pipeline.store.worker_processes import Ended, Failed, Worker, environment_of_each, ready


def devices_of(device: str, processes: int) -> list[str]:
    """Which device each process gets: `auto` and `cuda` mean the GPUs one after another, again from the first where there are
    more processes; any other device is the device of all. Starts nothing on a device."""
    gpus = _gpus() if device in ("auto", "cuda") else 0
    return [f"cuda:{number % gpus}" if gpus else device for number in range(processes)]


def _gpus() -> int:
    import torch  # where a device is named it is not needed

    return torch.cuda.device_count()


class Here:
    """This process. What the parts need is loaded when the first one is made."""

    def __init__(self, work: Work[Any], device: str) -> None:
        self._work, self._device = work, device
        self._make_one: Make[Any] | None = None

    def make(self, driver: Driver) -> None:
        while (part := driver.next()) is not None:
            if self._make_one is None:
                self._make_one = self._work.open(self._work.task, self._device)
            self._make_one(part.content(), driver.staging, partial(driver.advance, part))
            driver.finished(part)

    def close(self) -> None:
        self._make_one = None

    def facts(self) -> list[WorkerFacts]:
        return []


class LocalProcesses:
    """A worker for each of `devices`, started with its first part, and again after it has died. Each loads what the parts need
    once."""

    def __init__(self, work: Work[Any], devices: Sequence[str]) -> None:
        self._work, self._devices = work, dict(enumerate(devices, 1))
        self._environment = environment_of_each(len(devices))
        self._workers: dict[int, Worker] = {}  # by number
        self._parts: dict[int, Part[Any]] = {}  # the one that each makes
        self._facts: dict[int, WorkerFacts] = {}

    def make(self, driver: Driver) -> None:
        while True:
            idle = [number for number in self._devices if number not in self._parts]
            given = {number: part for number in idle if (part := driver.next()) is not None}
            for number in given:  # all at once: each reads its part only when it has imported what it needs
                if number not in self._workers:
                    self._workers[number] = self._start(self._devices[number])
            for number, part in given.items():
                self._parts[number] = part
                self._workers[number].send((part.content(), driver.staging))
            if not self._parts:
                return
            busy = {self._workers[number]: number for number in self._parts}
            for worker in ready(busy):
                self._listen(busy[worker], driver)

    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].end()

    def facts(self) -> list[WorkerFacts]:
        return list(self._facts.values())

    def _start(self, device: str) -> Worker:
        return Worker(_make_parts, self._work, device, environment=self._environment)

    def _listen(self, number: int, driver: Driver) -> None:
        """Do what the next message asks for. Raises what the worker raised."""
        worker, part = self._workers[number], self._parts[number]
        message = worker.next()
        if isinstance(message, Failed):
            raise message.error()
        if isinstance(message, Ended):
            del self._parts[number]
            self._workers.pop(number).end()
            driver.died(part, f"worker {number} (process {worker.pid})", str(message))
        elif isinstance(message, WorkerFacts):
            del self._parts[number]
            self._facts[number] = message
            driver.finished(part)
        else:
            driver.advance(part, message)


def _make_parts(connection: Connection, work: Work[Any], device: str) -> None:
    """A worker: make one part after another. It sends amounts of progress, and its facts when a part is done."""
    make: Make[Any] | None = None
    while True:
        content, out = connection.recv()  # at its end the process that started this one has ended, and so does this one
        if make is None:
            make = work.open(work.task, device)
        make(content, out, connection.send)
        connection.send(own_facts(device))
