"""Work for workers: squares of numbers, made in three steps, with accidents on request."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.running.parts import Part, Work


@dataclass(frozen=True)
class Squares:
    """`log`: a directory with a file for each time that something was opened or made."""

    log: Path
    accidents: tuple[tuple[int, str], ...] = ()  # number -> what happens with it, the first N times: kill-N, spoil-N
    pause: float = 0.0  # in each part, at most: `go_on` ends it


def open_squares(task: Squares, device: str) -> Callable[[int, Path, Callable[[float], None]], None]:
    """As a stage's function would load a model."""
    _note(task.log, f"opened-{device}-{os.environ.get('OMP_NUM_THREADS')}")

    def make(number: int, out: Path, advance: Callable[[float], None]) -> None:
        _note(task.log, f"made-{number}")
        advance(1.0)
        _accident(task, number, out)
        _pause(task)
        (out / f"{number}.a").write_text(str(number))
        (out / f"{number}.b").write_text(str(number * number))

    return make


def _pause(task: Squares) -> None:
    until = time.monotonic() + task.pause
    while time.monotonic() < until and not (task.log / "go on").exists():
        time.sleep(0.01)


def go_on(log: Path) -> None:
    """End all pauses."""
    (log / "go on").touch()


def _note(log: Path, what: str) -> None:
    (log / f"{what}-{os.getpid()}-{time.monotonic_ns()}").touch()


def _accident(task: Squares, number: int, out: Path) -> None:
    what, _, most = dict(task.accidents).get(number, "").partition("-")
    if what == "usage":
        raise UsageError(f"{number} cannot be squared")
    if what == "bug":
        raise ZeroDivisionError("a bug")
    if what in ("kill", "spoil") and times(task.log, f"made-{number}-*") <= int(most):
        for name in (f"{number}.a", f"{number}.b") if what == "spoil" else ():
            (out / name).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def times(log: Path, pattern: str) -> int:
    """How often something was noted."""
    return len(list(log.glob(pattern)))


def squares(count: int) -> list[Part[int]]:
    """Parts 0 to count - 1, of which each counts 3."""
    return [Part(str(number), (f"{number}.a", f"{number}.b"), 3.0, lambda n=number: n) for number in range(count)]  # type: ignore[misc]


def work(task: Squares) -> Work[Squares]:
    return Work(open_squares, task)


def contents(out: Path) -> dict[str, str]:
    """All files by name."""
    return {path.name: path.read_text() for path in out.iterdir()}


def expected(numbers: Sequence[int]) -> dict[str, str]:
    """What the parts of these numbers hold."""
    return {f"{n}.a": str(n) for n in numbers} | {f"{n}.b": str(n * n) for n in numbers}


@dataclass(frozen=True)
class Large:
    """What is sent of a part that no pipe takes at once."""

    number: int
    rest: bytes = bytes(1 << 24)


@dataclass(frozen=True)
class BeginsWithOthers(Squares):
    """A worker that gets it waits, before it reads its first part, until another has got it."""

    def __reduce__(self) -> tuple[Callable[..., "BeginsWithOthers"], tuple[Path]]:
        return _begin, (self.log,)


def _begin(log: Path) -> BeginsWithOthers:
    _note(log, "begun")
    until = time.monotonic() + 20
    while times(log, "begun-*") < 2:
        if time.monotonic() > until:
            _note(log, "alone")
            break
        time.sleep(0.01)
    return BeginsWithOthers(log)


def open_large(task: Squares, device: str) -> Callable[[Large, Path, Callable[[float], None]], None]:
    """As `open_squares`, for large parts."""
    make = open_squares(task, device)
    return lambda content, out, advance: make(content.number, out, advance)
