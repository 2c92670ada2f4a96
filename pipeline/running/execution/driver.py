"""What the process that runs the stage does, wherever parts are made: it hands them out, puts finished ones in place, and counts.

A worker writes to a directory beside the artifact's, and never to the artifact's own: a worker that outlives the run, or a task
that ends late, adds nothing to an artifact that is committed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import UnderstudyError
from pipeline.progress import Progress, Track
from pipeline.running.environment import WorkerFacts
from pipeline.running.execution.claims import Claims
from pipeline.running.parts import Part

MOST_DEATHS = 3  # of workers, with one part


class Place(Protocol):
    """Where parts are made. It keeps its workers, with what they have loaded, from one call to the next."""

    def make(self, driver: "Driver") -> None:
        """Make the parts that the driver hands out, until it has no more."""

    def close(self) -> None:
        """End the workers, also in the middle of a part."""

    def facts(self) -> list[WorkerFacts]:
        """The facts of the workers that have made parts, each once; also after `close`."""


class Driver:
    """Hands out the parts that nobody else makes."""

    def __init__(
        self,
        parts: list[Part[Any]],
        out: Path,
        staging: Path,
        claims: Claims,
        track: Track,
        progress: Progress,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called when a part has been put in place."""
        self.staging = staging  # where workers write
        self._out, self._claims, self._track, self._progress = out, claims, track, progress
        self._check = check
        self._given_back: list[Part[Any]] = []
        self._rest = self._claimed(parts)
        self._advanced: dict[str, float] = {}
        self._deaths: dict[str, int] = {}

    def next(self) -> Part[Any] | None:
        """A part to make; None if there is none now. After `died` there may be one again."""
        return self._given_back.pop() if self._given_back else next(self._rest, None)

    def advance(self, part: Part[Any], amount: float) -> None:
        """So much of a part is done."""
        self._advanced[part.name] = self._advanced.get(part.name, 0.0) + amount
        self._track.advance(amount)

    def finished(self, part: Part[Any]) -> None:
        """Put the files of a part in their place, unless another task was faster: files of two makers are not mixed, should they
        differ. FileNotFoundError where the place is gone: see `Spread.make`."""
        if not part.is_in(self._out):
            for name in part.files:
                (self.staging / name).replace(self._out / name)
        self._claims.release(part.name)
        if rest := part.amount - self._advanced.pop(part.name, 0.0):
            self._track.advance(rest)
        self._check()

    def died(self, part: Part[Any], worker: str, how: str) -> None:
        """A worker has died while it made a part, which is handed out again. UnderstudyError if it was the third one."""
        deaths = self._deaths[part.name] = self._deaths.get(part.name, 0) + 1
        if deaths == MOST_DEATHS:
            raise UnderstudyError(
                f"{part.name}: {deaths} workers died while they made it, the last one ({worker}) {how}; see above what they "
                "printed, give them more memory or lower the batch size, and run again: finished parts are kept"
            )
        self._progress.warn(
            f"{worker} {how} while it made {part.name}, which is made again ({deaths} of {MOST_DEATHS})"
        )
        self._track.advance(-self._advanced.pop(part.name, 0.0))
        self._given_back.append(part)

    def _claimed(self, parts: list[Part[Any]]) -> Iterator[Part[Any]]:
        """Those that are not done and not claimed by others, claimed when they are due."""
        for part in parts:
            if not part.is_in(self._out) and self._claims.take(part.name):
                if part.is_in(self._out):  # finished by another task in between
                    self._claims.release(part.name)
                else:
                    yield part
