"""What can be spread: a list of named parts, and a function that makes one. Torch-free; does not depend on what a part holds.

A part is a pure function of the task and its content. Its files are equal to the byte wherever and however often it is made, so
nothing has to exclude that two processes make the same one.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipeline.store.artifacts import Store

C = TypeVar("C")  # what a worker is sent of a part; picklable
T = TypeVar("T")  # what all parts have in common; picklable

Advance = Callable[[float], None]  # so many units of the part's amount are done
Make = Callable[[C, Path, Advance], None]  # writes the files of a part with this content to a directory


@dataclass(frozen=True)
class Work(Generic[T]):
    """How parts are made. `open` is a function of a module, which a worker imports: it is called once in each worker, with
    `task` and the device, loads what all parts need, and returns the function that makes one."""

    open: Callable[[T, str], Make[Any]]
    task: T


@dataclass(frozen=True)
class Part(Generic[C]):
    """One part. The last of its `files` is put in place last: where it is, the part is done."""

    name: str  # unique within the artifact
    files: tuple[str, ...]
    amount: float  # of progress
    content: Callable[[], C]  # called when the part is sent, so that contents need not be held

    def is_in(self, directory: Path) -> bool:
        """Whether the part is done."""
        return (directory / self.files[-1]).exists()


@dataclass(frozen=True)
class Share:
    """One of `count` shares of the parts, which one task of a scheduler makes: every `count`th part."""

    number: int  # from 1
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """`3/16`: the third of 16. ValueError for anything else."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"{text} is no share: write 3/16 for the third of 16 tasks, from 1/16 to 16/16")
        return cls(int(number), int(count))

    def of(self, parts: list[Part[C]]) -> list[Part[C]]:
        """The parts of this share. Neighbours, which have similar sizes, are in different shares."""
        return parts[self.number - 1 :: self.count]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def kept_parts(store: Store, artifact: str) -> Path:
    """The directory of finished parts that are no files of the artifact, until it is committed."""
    return store.parts / artifact


def drop_parts(store: Store, artifact: str) -> None:
    """Delete the parts that were kept for an artifact that is committed."""
    shutil.rmtree(kept_parts(store, artifact), ignore_errors=True)
