"""One line of `understudy doctor`, and what several checks need. Standard library only."""

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

GIB = 1024**3
Mark = Literal["ok", "missing", "note"]


@dataclass(frozen=True)
class Check:
    """One line: what was checked, the result, what was found and, if that is not enough, what to do.

    `missing` is only for what a run on a CPU needs; what is optional gets a `note`.
    """

    name: str
    mark: Mark
    found: str
    remedy: str = ""


def nearest(path: Path) -> Path:
    """`path` if it exists, else the nearest of its parents that does. Unlike `Path.exists`, raises on no directory."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def installed(name: str) -> bool:
    """Whether a package is installed, by its metadata; it is not imported."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]
