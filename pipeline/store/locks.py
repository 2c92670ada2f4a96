"""Locks between the processes of one machine: files that the kernel locks, and frees however a process ends."""

import errno
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.errors import UsageError


class Locks:
    """The locks of a store, by name: files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def lock(self, name: str, on_wait: Callable[[], None] = lambda: None, shared: bool = False) -> Iterator[None]:
        """Hold the lock `name`; `on_wait` is called once if another process has it. A shared lock excludes only those that are
        not."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with self._lock_file(name).open("w") as stream:
            if not self._taken(stream, how):
                on_wait()
                fcntl.flock(stream, how)
            yield

    @contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Hold the lock `name` if nobody else does; whether that is so."""
        with self._lock_file(name).open("w") as stream:
            yield self._taken(stream, fcntl.LOCK_EX)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock `name`, as far as this machine can tell. Writes nothing to the store."""
        try:
            with (self._folder / name).open("r") as stream:
                return not self._taken(stream, fcntl.LOCK_EX)
        except (OSError, UsageError):  # no such lock, or one that cannot be asked
            return False

    def _taken(self, stream: IO[str], how: int) -> bool:
        """Take the lock without waiting; False if another process has it. UsageError for a file system without locks: there,
        two runs would build one artifact at the same time, and nothing else is freed however a process ends."""
        try:
            fcntl.flock(stream, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise UsageError(
                f"--store {self._folder.parent}: this file system has no file locks (flock: {error.strerror}); choose a "
                "--store on another one, or have it mounted with locks (Lustre: -o flock)"
            ) from None
        return True

    def _lock_file(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
