"""Parts made by actors on a Ray cluster. The one module that uses Ray, which is imported where the config asks for it.

Ray starts actors, finds room for them and reports that one has died. Which part is made next, how often one is tried, locks and
commits are the driver's, as in every place: Ray would repeat a task that kills its worker for ever.
"""

import contextlib
import math
import os
import signal
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pipeline
from pipeline.config.execution import RayConfig
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.running.environment import WorkerFacts, own_facts, require_ray
from pipeline.running.execution.driver import Driver
from pipeline.running.parts import Make, Part, Work
from pipeline.store.worker_processes import Failed

_ANSWER_SECONDS = 10.0
_ROOT = str(Path(pipeline.__file__).resolve().parents[1])


class RayActors:
    """Actors, started with their first part. Each loads what the parts need once."""

    def __init__(self, work: Work[Any], device: str, config: RayConfig, progress: Progress) -> None:
        self._ray, self._config, self._progress = require_ray(), config, progress
        on = "cpu" if device == "auto" and not config.gpus else device
        self._workers = [_Worker(number, work, on, self) for number in range(1, config.workers + 1)]
        self._is_connected = False

    def make(self, driver: Driver) -> None:
        while True:
            for worker in self._workers:
                if worker.part is None and (part := driver.next() or self._waiting_for(worker)) is not None:
                    self._connect()
                    worker.begin(part, driver.staging)
            busy = {worker.answer: worker for worker in self._workers if worker.part is not None}
            if not busy:
                return
            for ready in self._ray.wait(list(busy))[0]:
                busy[ready].end(driver)

    def _waiting_for(self, idle: "_Worker") -> Part[Any] | None:
        """The part for a worker that is there and has nothing to do: that of one that the cluster has no room for, which would
        never be made where `workers` are more than fit."""
        if not idle.is_there:
            return None
        absent = next((worker for worker in self._workers if worker.part is not None and not worker.is_there), None)
        return None if absent is None else absent.give_up()

    def close(self) -> None:
        """End the actors; a cluster of this machine alone ends too."""
        if self._is_connected:
            for worker in self._workers:
                worker.kill()
            self._ray.shutdown()
            self._is_connected = False

    def facts(self) -> list[WorkerFacts]:
        return [worker.facts for worker in self._workers if worker.facts is not None]

    def actor(self, work: Work[Any], device: str) -> Any:
        """A new actor. It is not started again by Ray: the driver counts deaths."""
        config = self._config
        options = {
            "num_cpus": config.cpus,
            "num_gpus": config.gpus,
            "resources": dict(config.resources),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        return self._ray.remote(_Actor).options(**options).remote(work, device, _version())

    def _connect(self) -> None:
        """Connect to the cluster; without an address to one of this machine, with a CPU more than workers need: Ray has a task of
        its own."""
        if self._is_connected:
            return
        config = self._config
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here = {"num_cpus": math.ceil(config.cpus * config.workers) + 1, "include_dashboard": False}
        _require_answer(config.address)
        with _own_signals():
            try:
                self._ray.init(
                    # Without an address Ray would join a cluster that runs here or that RAY_ADDRESS names.
                    address=config.address or "local",
                    logging_level="ERROR",
                    runtime_env={} if config.address else {"env_vars": {"PYTHONPATH": _path()}},
                    **({} if config.address else here),
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise UsageError(
                    f"execution.ray.address = {config.address or 'null'}: Ray cannot be used: {reason}"
                ) from None
        self._is_connected = True
        self._require_room()

    def _require_room(self) -> None:
        """A cluster may grow; this machine does not."""
        config, there = self._config, self._ray.cluster_resources()
        needed = {"CPU": config.cpus, "GPU": config.gpus, **config.resources}
        short = [
            f"{name} {there.get(name, 0):g} of {amount:g}"
            for name, amount in needed.items()
            if there.get(name, 0) < amount
        ]
        if short and config.address is None:
            raise UsageError(
                f"execution.ray: this machine lacks what one worker needs: {', '.join(short)}; ask for less"
            )
        if short:
            self._progress.warn(f"the Ray cluster lacks what one worker needs: {', '.join(short)}; waiting for nodes")

    def get(self, answer: Any) -> Any:
        """What an actor has answered."""
        return self._ray.get(answer)

    def has(self, answer: Any) -> bool:
        """Whether an actor has answered, or is lost."""
        return bool(self._ray.wait([answer], timeout=0)[0])

    def kill(self, actor: Any) -> None:
        """End an actor at once."""
        self._ray.kill(actor)

    def is_death(self, error: Exception) -> bool:
        """Whether an actor is lost, or its node."""
        return isinstance(error, self._ray.exceptions.RayError)


class _Worker:
    """One actor, which is started again after it has died."""

    def __init__(self, number: int, work: Work[Any], device: str, place: RayActors) -> None:
        self._number, self._work, self._device, self._place = number, work, device, place
        self._actor: Any = None
        self._begun: Any = None  # the actor's first answer
        self.answer: Any = None
        self.part: Part[Any] | None = None
        self.facts: WorkerFacts | None = None

    @property
    def is_there(self) -> bool:
        """Whether the cluster has had room for it."""
        return self._actor is not None and self._place.has(self._begun)

    def begin(self, part: Part[Any], staging: Path) -> None:
        if self._actor is None:
            self._actor = self._place.actor(self._work, self._device)
            self._begun = self._actor.begin.remote()
        self.part, self.answer = part, self._actor.make.remote(part.content(), staging)

    def give_up(self) -> Part[Any]:
        """Wait no longer for the actor. Its part, which nobody has begun to make."""
        part, self.part = self.part, None
        assert part is not None  # it was asked for one
        self.kill()
        return part

    def end(self, driver: Driver) -> None:
        """Take the answer. Raises what the worker raised."""
        part, self.part = self.part, None
        assert part is not None  # it was asked for one
        try:
            answer: WorkerFacts | Failed = self._place.get(self.answer)
        except Exception as lost:
            if not self._place.is_death(lost):
                raise
            self.kill()  # it may still be there, as where it cannot read what it was sent
            driver.died(part, f"worker {self._number}", f"died ({' '.join(str(lost).split())[:300]})")
            return
        if isinstance(answer, Failed):
            raise answer.error()
        self.facts = answer
        driver.finished(part)

    def kill(self) -> None:
        if self._actor is not None:
            self._place.kill(self._actor)
            self._actor = None


class _Actor:
    """What runs on a node."""

    def __init__(self, work: Work[Any], device: str, version: str) -> None:
        self._work, self._device, self._version = work, device, version
        self._make: Make[Any] | None = None

    def begin(self) -> None:
        """Answers once the actor is there."""

    def make(self, content: Any, out: Path) -> WorkerFacts | Failed:
        """Make a part; an error is returned, so that what Ray raises is Ray's."""
        try:
            if self._make is None:
                self._require_same()
                self._make = self._work.open(self._work.task, self._device)
            if not out.is_dir():
                raise UsageError(f"{out}: not on {socket.gethostname()}; every node must see the store at this path")
            self._make(content, out, _nobody)
        except Exception as error:
            return Failed.by(error)
        return own_facts(self._device)

    def _require_same(self) -> None:
        if self._version != _version():
            raise UsageError(
                f"{socket.gethostname()} has Understudy {_version()}, and the command {self._version}; install the same version "
                "on every node"
            )


def _require_answer(address: str | None) -> None:
    """UsageError where nobody listens: Ray would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise UsageError(
            f"execution.ray.address = {address}: no cluster answers there ({error}); start Ray, or correct it"
        ) from None


def _nobody(amount: float) -> None:
    """An actor reports what it has done when a part is done."""


def _version() -> str:
    try:
        return metadata.version("understudy")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "of a checkout"


def _path() -> str:
    """PYTHONPATH of workers on this machine: they find these packages first, as the command does."""
    return os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray ends the process at SIGTERM; the command ends in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
