"""How every report is printed: width, wrapping and the style of tables, in one place."""

import os
import sys
from collections.abc import Collection, Sequence
from textwrap import TextWrapper, wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.escaping.terminal import printable

_PIPE_WIDTH = 120
# Ways to print a table, the widest first: frame, gap, most lines of a header, most lines of a text.
_STYLES = (
    (box.HEAVY_HEAD, 1, 1, 1),
    (box.HEAVY_HEAD, 1, 2, 1),
    (None, 2, 2, 1),
    (None, 1, 2, 2),
    (None, 1, 2, 3),
    (None, 1, 9, 5),
    (None, 1, 9, 9),
)
NO_BREAK = "\u00a0"  # printed as a space at which no line is broken


class Report:
    """Prints to stdout. A terminal, or COLUMNS, sets the width. A pipe gets whole sentences and tables of a fixed width."""

    def __init__(self, console: Console | None = None) -> None:
        self.piped = not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit()
        self.console = console or Console(width=_PIPE_WIDTH if self.piped else None, highlight=False, emoji=False)

    def line(self, text: str = "") -> None:
        """A line that is never broken, such as one with a path in it."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def text(self, text: str, indent: int = 0) -> None:
        """A sentence; in a terminal it is broken between words, and the lines after the first are indented."""
        lines = [NO_BREAK.join(map(printable, text.split(NO_BREAK)))]
        if not self.piped:
            wrapper = TextWrapper(
                self.console.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
            )
            lines = wrapper.wrap(lines[0]) or [""]
        for line in lines:
            self.line(line.replace(NO_BREAK, " "))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = (), title: str = ""
    ) -> None:
        """A table. Columns are aligned right, except those in `left`, which hold text. Figures are never broken: in a narrow
        terminal headers are, then the frame is left out, then text is broken between words, and at last each row is a list.
        """
        if title:
            self.text(title)
        columns, rows = [printable(column) for column in columns], [[printable(cell) for cell in row] for row in rows]
        for frame, gap, headers, texts in _STYLES:
            widths = [
                max(_width([column], headers), _width([row[index] for row in rows], texts if column in left else 1))
                for index, column in enumerate(columns)
            ]
            between, edges = (2 * gap + 1, 2 * gap + 2) if frame else (gap, 0)
            if sum(widths) + between * (len(widths) - 1) + edges <= self.console.width:
                self.console.print(_table(columns, rows, left, widths, frame, gap))
                return
        label = max(map(len, columns))
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                self.line(f"{column:<{label}}  {cell}")
            self.line()


def _width(cells: Sequence[str], lines: int) -> int:
    """The smallest width at which each cell takes at most so many lines, broken between words."""
    return max((_fitting(cell, lines) for cell in cells), default=0)


def _fitting(cell: str, lines: int) -> int:
    longest_word = max(map(cell_len, cell.split()), default=0)
    return next(
        (
            width
            for width in range(longest_word, cell_len(cell))
            if len(wrap(cell, width, break_on_hyphens=False)) <= lines
        ),
        cell_len(cell),
    )


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str],
    widths: Sequence[int],
    frame: box.Box | None,
    gap: int,
) -> Table:
    table = Table(box=frame, pad_edge=frame is not None, padding=(0, gap) if frame else (0, gap, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(Text(column), justify="left" if column in left else "right", width=width)
    for row in rows:
        table.add_row(*map(Text, row))  # a name may hold what rich takes for markup
    return table
