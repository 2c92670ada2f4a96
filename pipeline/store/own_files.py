"""Marks readers of files that no user writes."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def reads_own_files(why: str) -> Callable[[T], T]:
    """What is decorated reads only files that Understudy or the system wrote, or that were checked before; `why`: which of these.

    It changes nothing. Every other place that reads a file is tried on damaged ones (`tests/unit/readers`).
    """
    return lambda reader: reader
