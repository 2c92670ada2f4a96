"""Files and directories that are written beside their place and then renamed: a reader sees the old content or the new one.

A temporary name has the tag of its process (`processes.py`) and random digits: two containers that share a volume can have equal
process ids. A killed process leaves its temporary file behind: `Store.commit` deletes those of an artifact, known by their names
(`PARTIAL`), and `remove_left_behind` deletes those of processes that have ended.
"""

import glob
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.store.processes import is_gone, own_tag

PARTIAL = ".*.partial"  # glob pattern of the temporary names
_DAY = 86400.0


def temporary_name(path: Path) -> Path:
    """A new name beside `path`: `.NAME.TAG-RANDOM.partial`."""
    return path.with_name(f".{path.name}.{own_tag()}-{secrets.token_hex(8)}.partial")


def remove_left_behind(root: Path, skip: Collection[Path] = ()) -> list[Path]:
    """Delete the temporary files and directories below `root`, except in `skip`, of processes that have ended; those of another
    machine once they are a day old. Returns what was deleted."""
    gone = []
    for folder, folders, files in os.walk(root):
        partials = {name for name in (*folders, *files) if Path(name).match(PARTIAL)}
        folders[:] = [name for name in folders if name not in partials and Path(folder, name) not in skip]
        for path in (Path(folder, name) for name in sorted(partials)):
            if not is_gone(_tag_of(path), path, _DAY):
                continue
            with suppress(OSError):  # another process deletes it at the same moment, or the disk is read-only
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                gone.append(path)
    return gone


def _tag_of(partial: Path) -> str:
    return partial.name.removesuffix(".partial").rpartition(".")[2].rpartition("-")[0]


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
    """Replace as `replacing` does, for a directory, which is not synced. `path` must not exist, or be an empty directory."""
    with temporary_directory(path) as partial:
        yield partial
        partial.rename(path)


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """An empty directory beside `path`, removed at the end. Those of processes that were killed are removed before."""
    for stray in path.parent.glob(f".{glob.escape(path.name)}{PARTIAL[1:]}"):
        if stray.is_dir() and is_gone(_tag_of(stray), stray, _DAY):
            shutil.rmtree(stray, ignore_errors=True)
    partial = temporary_name(path)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
