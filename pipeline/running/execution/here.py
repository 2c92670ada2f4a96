"""Parts made in this process, one after another."""

from functools import partial
from typing import Any

from pipeline.running.execution.driver import Driver
from pipeline.running.execution.parts import Make, Work
from pipeline.running.execution.worker_facts import WorkerFacts


class Here:
    """What the parts need is loaded when the first one is made."""

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
