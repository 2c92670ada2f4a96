"""What is printed: results on stdout; progress on stderr, one line per event, and a progress bar on a terminal only.

Text of users is escaped here, so that it cannot move the cursor, colour, reorder or add a line. Nothing else prints, but for the
renderers that use rich (`report/console.py`, `report/decode.py`); a test holds that.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pipeline.escaping.secrets import without_secrets
from pipeline.escaping.terminal import printable, printable_block

_PLAIN_INTERVAL_S = 15.0


class Track(Protocol):
    """Progress of one task."""

    def advance(self, amount: float, note: str = "") -> None: ...


def say(*lines: str) -> None:
    """Lines of a result, to stdout."""
    for line in lines:
        print(printable(without_secrets(line)), flush=True)


def say_block(text: str) -> None:
    """A result of several lines, to stdout; they end as `text` does."""
    print(printable_block(text), end="", flush=True)


def say_json(value: Any, indent: int | None = 1) -> None:
    """A result for programs, to stdout: JSON of ASCII only. ValueError for NaN."""
    print(json.dumps(value, indent=indent, allow_nan=False), flush=True)


class Progress:
    """Writes to stderr, because results go to stdout."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stderr.isatty() if terminal is None else terminal

    def line(self, text: str) -> None:
        print(printable(without_secrets(text)), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.line(f"warning: {text}")

    @contextmanager
    def track(self, label: str, total: float, unit: str, done: float = 0) -> Iterator[Track]:
        """Show the progress of `total` units of work, `done` of them from an earlier run."""
        if self.terminal:
            with _bar(label, total, unit, done) as bar:
                yield bar
        else:
            yield _Plain(self, label, total, unit, done)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


class _Plain:
    """A line every 15 seconds, for log files."""

    def __init__(self, progress: Progress, label: str, total: float, unit: str, done: float) -> None:
        self.progress, self.label, self.total, self.unit = progress, label, total, unit
        self.done, self.before = done, done
        self.began = self.printed = time.monotonic()

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.printed < _PLAIN_INTERVAL_S:
            return
        self.printed = now
        rate = (self.done - self.before) / (now - self.began)
        told = [f"  {self.label}: {self.done:,.0f} of {self.total:,.0f} {self.unit}"]
        if rate > 0:  # else nothing is done yet, such as while a model is loaded, and nothing can be foreseen
            told.append(f"{_rate(rate)} {self.unit}/s, {(self.total - self.done) / rate:,.0f} s left")
        self.progress.line(", ".join([*told, note] if note else told))


@contextmanager
def _bar(label: str, total: float, unit: str, done: float) -> Iterator[Track]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(label), total=total, completed=int(done), rate="", note="")
        began, advanced = time.monotonic(), 0.0

        class _Bar:
            def advance(self, amount: float, note: str = "") -> None:
                nonlocal advanced
                advanced += amount
                rate = advanced / max(time.monotonic() - began, 1e-9)
                shown = f"{_rate(rate)}/s" if rate > 0 else ""
                progress.update(task, advance=amount, rate=shown, note=printable(note))

        yield _Bar()
