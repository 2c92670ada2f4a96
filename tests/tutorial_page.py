"""docs/tutorial.md as a list of commands: a line of a `console` block that begins with `$ ` is one, and what follows is what it
prints. Imports nothing of the product.

`...` stands for lines that are not shown; other lines follow each other. Figures, names made of hashes, and white space are not
compared.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
HOME = "/home/you/understudy"  # the checkout of the page's reader
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ANY = "..."
_MASKS = (
    (r"^decision: passed, but .*", "decision: passed"),  # whether a draft is faster depends on the machine
    (r"\b[0-9a-f]{20}\b", "HASH"),
    (r"\btarget-[0-9a-f]{6}\b", "target-HASH"),
    (r"-[0-9a-f]{4}\b", "-HASH"),
    (r"\d[\d.,:]*", "0"),
    (r"[┏┳┓┡╇┩└┴┘━─┃│]+", " "),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Step:
    """One command, and the lines that the page shows of its output."""

    command: str
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """In the order of the page."""
    found = list[Step]()
    for block in _BLOCK.findall(page):
        before, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        assert before == "", f"a console block begins with a command, not with {before!r}"
        for part in parts:
            command, *lines = part.splitlines()
            found.append(Step(command, tuple(lines)))
    return found


def missing(shown: Sequence[str], printed: str, home: str) -> str:
    """The first line of the page that was not printed where the page has it; empty if there is none."""
    lines = [line for line in (_masked(one.replace(home, HOME)) for one in printed.splitlines()) if line]
    place, is_free = 0, not shown
    for one in shown:
        if one.strip() == _ANY:
            is_free = True
            continue
        if not (wanted := _masked(one)):
            continue
        found = next((n for n in range(place, len(lines)) if lines[n] == wanted), None)
        if found is None or (found > place and not is_free):
            return one
        place, is_free = found + 1, False
    return "" if is_free or place == len(lines) else f"(the end of the page's output; printed after it: {lines[place]})"


def _masked(line: str) -> str:
    for pattern, by in _MASKS:
        line = re.sub(pattern, by, line)
    return line.strip()
