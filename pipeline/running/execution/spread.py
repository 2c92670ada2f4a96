"""The one way to spread a list of parts over whatever there is: this process, several, a Ray cluster, tasks of a scheduler.

A stage opens a `Spread` and gives it lists of parts, one after another where a list depends on the files of the one before. Parts
that are done are skipped, so an interrupted stage, or one whose parts tasks of a scheduler have made, makes what is missing.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.progress import Progress
from pipeline.running.context import StageContext
from pipeline.running.execution.claims import Claims
from pipeline.running.execution.driver import Driver, Place
from pipeline.running.execution.local import Here, LocalProcesses, devices_of
from pipeline.running.parts import Part, Work
from pipeline.store.atomic import temporary_directory

_LOOK_SECONDS = 0.5  # between two looks whether others have made their parts


class Spread:
    """Makes parts in the place that the config names. Use it as a context manager: its workers end with it."""

    def __init__(self, context: StageContext[Any], work: Work[Any], out: Path | None = None) -> None:
        """`out`: an existing directory for finished parts; by default the stage's own."""
        self._context, self._out = context, context.out if out is None else out
        self._directory = context.store.parts
        self._place = _place(context, work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._place.close()
        self._context.workers.extend(self._place.facts())

    def make(self, parts: Sequence[Part[Any]], label: str, unit: str, check: Callable[[], None] = lambda: None) -> int:
        """Make the parts that are missing, or those of the context's share of them, and wait for those that other tasks make.
        `label` and `unit` of the progress line. `check` looks at the parts that are there, before others are made and after each.
        Returns how many parts are still missing: of other shares.

        Raises what making a part or `check` raises; UnderstudyError for a part with which three workers died; FileNotFoundError
        where the directory is gone, because another process has committed it.
        """
        context, own = self._context, list(parts)
        if context.share is not None:
            own = context.share.of(own)
        done = sum(part.amount for part in own if part.is_in(self._out))
        with (
            context.progress.track(label, sum(part.amount for part in own), unit, done) as track,
            Claims(self._directory, context.out.name).kept() as claims,
            temporary_directory(self._directory / context.out.name) as staging,
        ):
            told = False
            check()
            while missing := _missing(own, self._out):
                driver = Driver(missing, self._out, staging, claims, track, context.progress, check)
                try:
                    self._place.make(driver)
                except BaseException:
                    self._place.close()  # before the directory goes that its workers write to
                    raise
                missing = _missing(missing, self._out)
                if missing and not told:
                    _tell(missing, claims, context.progress)
                    told = True
                if missing:
                    time.sleep(_LOOK_SECONDS)
            check()  # parts of others
        return len(_missing(parts, self._out))


def _missing(parts: Sequence[Part[Any]], out: Path) -> list[Part[Any]]:
    if not out.is_dir():
        raise FileNotFoundError(f"{out}: gone")
    return [part for part in parts if not part.is_in(out)]


def _tell(missing: Sequence[Part[Any]], claims: Claims, progress: Progress) -> None:
    holders = sorted({holder for part in missing if (holder := claims.holder(part.name))})
    if holders:
        tasks = ", ".join(holders[:5])
        shards = "1 shard is" if len(missing) == 1 else f"{len(missing)} shards are"
        progress.line(
            f"  {shards} being made by {'other tasks' if len(holders) > 1 else 'another task'} ({tasks}); waiting"
        )


def _place(context: StageContext[Any], work: Work[Any]) -> Place:
    execution, device = context.resources.execution, context.resources.device
    if execution.ray is not None:
        from pipeline.running.execution.ray_cluster import RayActors

        return RayActors(work, device, execution.ray, context.progress)
    if execution.local > 1:
        return LocalProcesses(work, devices_of(device, execution.local))
    return Here(work, device)
