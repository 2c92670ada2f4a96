"""What is printed: results on stdout; progress on stderr, one line per event, and a progress bar on a terminal only.

Text of users is escaped here, so that it cannot move the cursor, colour, reorder or add a line. Nothing else prints, but for the
renderers that use rich (`commands/tables/console.py`, `commands/tables/decode.py`); a test holds that.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import TextWrapper
from typing import Any, Protocol

from pipeline.escaping.secrets import without_secrets
from pipeline.escaping.terminal import printable, printable_block

_PLAIN_INTERVAL_S = 15.0
_LEAST_BAR, _MOST_BAR = 10, 40  # columns


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


def say_json(value: Any, indent: int | None = 1, notes: Iterable[str] = ()) -> None:
    """A result for programs, to stdout: JSON of ASCII only. The notes on it are for people, so they go to stderr. ValueError for
    NaN."""
    for note in notes:
        Progress().line(note)
    print(json.dumps(value, indent=indent, allow_nan=False), flush=True)


class Progress:
    """Writes to stderr, because results go to stdout."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stderr.isatty() if terminal is None else terminal

    def line(self, text: str) -> None:
        """On a terminal broken between words, of which a path is one; elsewhere as it is."""
        shown = printable(without_secrets(text))
        for line in broken(shown, _width()) if self.terminal else [shown]:
            print(line, file=sys.stderr, flush=True)

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


def broken(line: str, width: int) -> list[str]:
    """Lines of at most `width` characters, unless a word is longer; the first keeps its indentation."""
    within = TextWrapper(max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return within.wrap(line) or [line]


def _width() -> int:
    """Of the terminal on stderr: stdout may be a file."""
    try:
        return os.get_terminal_size(2).columns or 80  # 0: a terminal that was never told its size
    except OSError:
        return 80


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _left(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:,.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 7200 else f"{seconds / 3600:,.1f} h left"


@dataclass(frozen=True)
class Words:
    """How far a task is: the same words in a log file and on a terminal.

    `rate` and `left` are empty before anything is done, such as while a model is loaded."""

    label: str
    count: str
    unit: str
    rate: str
    left: str
    note: str

    @property
    def line(self) -> str:
        return f"  {self.label}: {_joined(f'{self.count} {self.unit}', self.rate, self.left, self.note)}"


class _Task:
    def __init__(self, label: str, total: float, unit: str, done: float) -> None:
        self.label, self.total, self.unit, self.note = printable(label), total, unit, ""
        self.done, self.before = done, done
        self.began = time.monotonic()

    def words(self, now: float) -> Words:
        count, rate, left = f"{self.done:,.0f} of {self.total:,.0f}", "", ""
        speed = (self.done - self.before) / max(now - self.began, 1e-9)
        if speed > 0:
            rate, left = f"{_rate(speed)} {self.unit}/s", _left(max(self.total - self.done, 0) / speed)
        return Words(self.label, count, self.unit, rate, left, self.note)


class _Plain(_Task):
    """A line every 15 seconds, for log files."""

    def __init__(self, progress: Progress, label: str, total: float, unit: str, done: float) -> None:
        super().__init__(label, total, unit, done)
        self.progress, self.printed = progress, self.began

    def advance(self, amount: float, note: str = "") -> None:
        self.done, self.note = self.done + amount, note
        now = time.monotonic()
        if now - self.printed >= _PLAIN_INTERVAL_S:
            self.printed = now
            self.progress.line(self.words(now).line)


class _OnTerminal(_Task):
    """One line that is drawn again and again, which rich asks for."""

    def advance(self, amount: float, note: str = "") -> None:
        self.done, self.note = self.done + amount, printable(without_secrets(note))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        before, bar, after = fitted(self.words(time.monotonic()), options.max_width)
        yield Text(before, end="")
        if bar:
            yield ProgressBar(max(self.total, 1), self.done, width=bar)
        yield Text(after, no_wrap=True, overflow="crop")


@contextmanager
def _bar(label: str, total: float, unit: str, done: float) -> Iterator[Track]:
    from rich.console import Console
    from rich.live import Live

    task = _OnTerminal(label, total, unit, done)
    live = Live(task, console=Console(stderr=True), refresh_per_second=10, transient=True)
    try:  # no `with`: an interruption at its start would leave its thread and its stderr behind
        live.start(refresh=True)
        yield task
    finally:
        live.stop()


def fitted(words: Words, width: int) -> tuple[str, int, str]:
    """What stands before a progress bar, its width (0 for none), and what stands after it: at most `width` columns together.

    People decide by the count, by the time that is left, and by the note. So the bar has what these leave; where there is too
    little, the rate is left out, then the note is cut, then the unit is left out, and at last the label is cut.
    """
    from rich.cells import cell_len

    if (spare := width - cell_len(words.line)) >= 0:
        before = f"  {words.label}: "
        bar = min(spare - 1, _MOST_BAR) if spare > _LEAST_BAR else 0
        return before, bar, " " * bool(bar) + words.line.removeprefix(before)
    figures = _joined(f"{words.count} {words.unit}", words.left)
    if cell_len(f"  {words.label}: {figures}") > width:
        figures = _joined(words.count, words.left)
    before = f"  {_cut(words.label, width - cell_len(figures) - 4)}: "
    note = _cut(words.note, width - cell_len(before + figures) - 2)
    return before, 0, _joined(figures, note)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _cut(text: str, most: int) -> str:
    """At most so many columns; nothing where it would be a few letters."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= most:
        return text
    return f"{set_cell_size(text, most - 1).rstrip()}…" if most >= 6 else ""
