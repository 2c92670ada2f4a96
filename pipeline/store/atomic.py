"""Files and directories that are written beside their place and then renamed: a reader sees the old content or the new one.

Temporary names are random. A process id would not do: two containers that share a volume can have equal ones. A killed process
leaves its temporary file behind; `Store.commit` deletes those of an artifact, which it recognises by `PARTIAL`.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".*.partial"  # glob pattern of the temporary names


def temporary_name(path: Path) -> Path:
    """A new name beside `path`: `.NAME.RANDOM.partial`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to. It is synced and becomes `path` at the end; after an error it is removed."""
    partial = temporary_name(path)
    partial.open("x").close()
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """As `replacing`, for a directory, which is not synced. `path` must not exist, or be an empty directory."""
    partial = temporary_name(path)
    partial.mkdir()
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
