"""How rows of prompts are taken out of values that hold them somewhere: a program for jq, tried on the first values. Pure.

What is advised has been done in memory, and the rows were recognised. Where nothing works, nothing is advised.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

_WORD = re.compile(r"[A-Za-z_]\w{0,40}")
_NO_PROMPTS = re.compile(
    r"system|header|metadata|column|schema|label|output|response|answer|completion", re.IGNORECASE
)  # names of keys
_TURNS = re.compile(
    r"(?:conversations?|dialog(?:ue)?s?|chats?|messages|turns|rounds|thread|history)\Z", re.IGNORECASE
)  # not rows
_DEEPEST = 3  # keys and lists on the way
_MOST_KEYS = 16
_MOST_ROWS = 256  # that a step keeps

Works = Callable[[Sequence[Any]], bool]


def program_for(values: Sequence[Any], works: Works, as_they_are: bool = False) -> str | None:
    """The shortest jq program that makes rows of `values` for which `works`; None without one. `as_they_are`: the values may be
    rows themselves, and only their file is not read."""
    if as_they_are and works(values):
        return "."
    level: list[tuple[str, Sequence[Any]]] = [("", values)]
    for _ in range(_DEEPEST):
        level = [step for program, rows in level for step in _steps(program, rows)]
        for program, rows in level:
            if works(rows):
                return program
    return None


def _steps(program: str, rows: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """One step further: the elements of all `rows`, or what is under a key in all of them, as jq gives it."""
    if not rows:
        return
    objects = all(isinstance(row, Mapping) for row in rows)
    if all(isinstance(row, list) for row in rows) and not (len(rows) > 1 and _TURNS.search(program)):
        yield _each(program), list(islice((item for row in rows for item in row), _MOST_ROWS))
    elif objects and len(rows[0]) > 1 and all(isinstance(item, Mapping) for row in rows for item in row.values()):
        yield _each(program), list(islice((item for row in rows for item in row.values()), _MOST_ROWS))
    if objects:
        for name in islice(rows[0], _MOST_KEYS):
            if not isinstance(rows[0][name], Mapping | list) or _NO_PROMPTS.search(name):
                continue
            if all(name in row for row in rows):
                key = f".{name}" if _WORD.fullmatch(name) else f"{'' if program else '.'}[{json.dumps(name)}]"
                yield program + key, [row[name] for row in rows]


def _each(program: str) -> str:
    return f"{program or '.'}[]"
