"""Locks between the processes of one machine: files that the kernel locks, and frees however a process ends.

The file of an exclusive lock has who holds it and since when, for those who wait and for people who look.
"""

import errno
import fcntl
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.own_files import reads_own_files
from pipeline.store.times import utc_now

WAIT_SECONDS = 1800.0  # for work that takes seconds or minutes
UNLIMITED = math.inf  # for an artifact that another process makes: the wait is what is left of the work
_POLL_SECONDS = 0.2
_MOST = 200  # characters of a holder


class NotFree(UnderstudyError):
    """A lock was not free in time. `holder`: who has it, in words."""

    def __init__(self, said: str, holder: str) -> None:
        super().__init__(said)
        self.holder = holder


class Locks:
    """The locks of a store, by name: files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def lock(
        self,
        name: str,
        on_wait: Callable[[str], None] = lambda holder: None,
        shared: bool = False,
        wait_seconds: float = WAIT_SECONDS,
    ) -> Iterator[None]:
        """Hold the lock `name`. `on_wait` is called once, with `holder`, if another process has it. A shared lock excludes only
        those that are not. NotFree where it is not free within `wait_seconds`."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with self._opened(name) as stream:
            if not self._taken(stream, how):
                on_wait(self.holder(name))
                self._wait(stream, how, name, wait_seconds)
            with _written(stream, shared):
                yield

    @contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Hold the lock `name` if nobody else does; whether that is so."""
        with self._opened(name) as stream:
            if not self._taken(stream, fcntl.LOCK_EX):
                yield False
                return
            with _written(stream, shared=False):
                yield True

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock `name`, as far as this machine can find out. Writes nothing to the store."""
        try:
            with (self._folder / name).open("r") as stream:
                return not self._taken(stream, fcntl.LOCK_EX)
        except (OSError, UsageError):  # no such lock, or one that cannot be asked
            return False

    @reads_own_files("written below; whoever changes it changes a text that people read")
    def holder(self, name: str) -> str:
        """Who holds the exclusive lock `name`, in words."""
        try:
            said = (self._folder / name).read_text(encoding="utf-8", errors="replace")[:_MOST]
        except OSError:
            said = ""
        return " ".join(said.split()) or "another process"

    def _wait(self, stream: IO[str], how: int, name: str, seconds: float) -> None:
        if math.isinf(seconds):
            fcntl.flock(stream, how)
            return
        ends = time.monotonic() + seconds
        while not self._taken(stream, how):
            if time.monotonic() > ends:
                holder = self.holder(name)
                raise NotFree(
                    f"{self._folder / name}: not free within {seconds / 60:g} minutes; held by {holder}: see what that process "
                    "waits for, and call again",
                    holder,
                )
            time.sleep(_POLL_SECONDS)

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

    def _opened(self, name: str) -> IO[str]:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")  # what its holder wrote stays


@contextmanager
def _written(stream: IO[str], shared: bool) -> Iterator[None]:
    """The file has who holds the lock, while it is held. A shared one has many holders, and does not name the last exclusive."""
    _replace(stream, "" if shared else f"process {os.getpid()} on {socket.gethostname()}, since {utc_now()}")
    try:
        yield
    finally:
        if not shared:
            _replace(stream, "")


def _replace(stream: IO[str], text: str) -> None:
    with suppress(OSError):  # a full disk: the lock is the kernel's
        os.ftruncate(stream.fileno(), 0)
        os.write(stream.fileno(), text.encode())
