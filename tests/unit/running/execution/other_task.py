"""A task that makes squares, also as a process of its own with two workers, which pause in each part: `python -m ... STORE`."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.config.execution import ExecutionConfig
from pipeline.progress import Progress
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Share
from pipeline.store.artifacts import Store
from tests.unit.running.execution.work import Squares, squares, work


def context_of(store: Path, execution: ExecutionConfig, share: Share | None = None) -> Any:
    """What is read of a stage's context."""
    return SimpleNamespace(
        out=store / "work/squares-1",
        store=Store(store),
        progress=Progress(False),
        share=share,
        workers=[],
        resources=SimpleNamespace(execution=execution, device="cpu"),
    )


def log_of(context: Any) -> Path:
    """Where workers note what they do."""
    found: Path = context.store.root.parent / "log"
    return found


def make(context: Any, count: int, *accidents: tuple[int, str], pause: float = 0.0) -> int:
    """Make so many squares; how many are missing."""
    with Spread(context, work(Squares(log_of(context), accidents, pause))) as spread:
        return spread.make(squares(count), "squares", "numbers")


if __name__ == "__main__":
    make(context_of(Path(sys.argv[1]), ExecutionConfig(local=2)), 4, pause=60.0)
