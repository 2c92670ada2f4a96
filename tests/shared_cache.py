"""What is expensive to make and the same for every test: made once, under a lock, and kept in `.cache` of the checkout.

An entry is a directory named after a hash of everything that it depends on: the code, the config, the libraries, the processor.
Tests read entries and never change them. `make clean` and deleting `.cache` are both safe.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.native.compiler import processor

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "understudy-tests"
COMPILED = CACHE / "compiled"  # XDG_CACHE_HOME of every test: libraries built from C, fonts found by matplotlib
_KEPT = 2  # entries of a kind: the code at hand, and the code before the last change
_DONE = ".done"
_CODE = ("*.py", "*.c", "*.h", "*.yaml")
_EVERYTHING = (
    *("pipeline", "stages", "configs", "pyproject.toml"),
    *("tests/integration/conftest.py", "tests/integration/mlflow_fixtures.py"),
)


def entry(kind: str, make: Callable[[Path], object], code: tuple[str, ...] = _EVERYTHING) -> Path:
    """The directory of `kind` for the code as it is. If it is not there, `make` gets its path and fills it. `code`: folders and
    files that it depends on.

    The path is part of the hash, because what lies in it may name it. A directory without the mark was left by a killed session.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256("\0".join((_identity(code), str(CACHE))).encode()).hexdigest()[:16]
    place = CACHE / f"{kind}-{key}"
    with _locked(kind):
        if not (place / _DONE).is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
        (place / _DONE).touch()
        _forget(kind)
    return place


def _forget(kind: str) -> None:
    """Delete all entries of `kind` but those that were used last."""
    found = sorted(CACHE.glob(f"{kind}-*/"), key=_last_used, reverse=True)
    for old in found[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _last_used(place: Path) -> float:
    mark = place / _DONE
    return mark.stat().st_mtime if mark.exists() else 0.0


@contextlib.contextmanager
def _locked(kind: str) -> Iterator[None]:
    """One worker makes it and the others wait. The system releases the lock of a process that ends."""
    with (CACHE / f"{kind}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _identity(code: tuple[str, ...]) -> str:
    """This code, the installed versions, the interpreter, whose library is the reference text, and the processor."""
    found = hashlib.sha256()
    for path in (file for name in code for file in _files(ROOT / name)):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    versions = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
    found.update(
        repr((versions, sys.version, platform.machine(), processor(), os.environ.get("OMP_NUM_THREADS"))).encode()
    )
    return found.hexdigest()


def _files(path: Path) -> list[Path]:
    """The file, or the code below the folder; a wheel's tests lack some."""
    if path.is_file():
        return [path]
    return sorted(one for pattern in _CODE for one in path.rglob(pattern))
