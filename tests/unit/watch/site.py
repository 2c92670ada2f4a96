"""What a watch reads and tells, for its tests: each may fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.root import Config
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.store.artifacts import Store
from pipeline.watch import acting
from pipeline.watch.acting import Watch, watch_of
from pipeline.watch.prediction import ServedDraft
from pipeline.watch.reading import Look, ReaderState
from tests.unit.watch.expectations import expected_at

MINUTE, HOUR = 60.0, 3600.0
BEGIN = 100 * HOUR
NAME = "big-draft"


def watch_config(**changes: Any) -> Config:
    watch = {
        "endpoints": ["http://one:8000"],
        "engine": "vllm",
        "burst_minutes": 0.01,
        "notice": {"program": "/bin/true"},
    }
    raw = {
        "name": "watched",
        "pair": {"target": {"source": "./big"}, "draft": {"source": "./small"}},
        "corpus": {"sources": [{"path": "prompts.jsonl"}]},
        "watch": watch,
    }
    return Config.model_validate(raw | changes)


@dataclass
class Site:
    """What a watch reads and tells: each may fail."""

    root: Path
    config: Config = field(default_factory=watch_config)
    served: ServedDraft = field(
        default_factory=lambda: ServedDraft("vllm", expected_at(first=0.8, accepted=1.92, gamma=3))
    )
    first: float | None = 0.8
    problems: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    points: list[tuple[Mapping[str, float], int]] = field(default_factory=list)
    began: list[list[str]] = field(default_factory=list)
    is_down: bool = False
    before: float | None = None
    began_with: list[ReaderState] = field(default_factory=list)

    def watch(self) -> Watch:
        progress = Progress(terminal=False)
        progress.line = self.lines.append  # type: ignore[method-assign]
        made = watch_of(self.config, Store(self.root), NAME, BEGIN, progress)
        self.began.append(list(self.lines))
        self.lines.clear()
        return made

    def reader(self, settings: object, engine: str, own: object, state: ReaderState, logged: object) -> "Site":
        self.began_with.append(state)
        return self

    def read(self, now: float) -> tuple[Look, ReaderState]:
        counts = None
        if self.first is not None and self.before is not None:
            counts = Counts(
                drafts=1000.0, draft_tokens=3000.0, accepted=2400 * self.first, accepted_first=1000 * self.first
            )
        seconds = None if self.before is None else now - self.before
        self.before = now
        found = Look(time=now, seconds=seconds, counts=counts, running=4.0, problems=self.problems)
        return found, ReaderState(time=now)

    def send(self, settings: object, message: Any) -> None:
        if self.is_down:
            raise UnderstudyError("notice: nobody is there")
        self.told.append(message)

    def log(self, config: object, store: object, name: str, figures: Mapping[str, float], step: int) -> None:
        if self.is_down:
            raise UnderstudyError("MLflow does not answer")
        self.points.append((figures, step))


def put_in_place(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the watch reads and tells."""
    monkeypatch.setattr(acting, "EngineReader", site.reader)
    monkeypatch.setattr(acting, "served", lambda config: site.served)
    monkeypatch.setattr(acting, "send", site.send)
    monkeypatch.setattr(acting, "log_watch", site.log)


def look_at(watch: Watch, site: Site, firsts: Sequence[float], begin: float = BEGIN, step: float = 5 * MINUTE) -> float:
    """Looks at these shares of the first position; when the next would be."""
    for first in firsts:
        site.first = first
        watch.look(begin)
        begin += step
    return begin
