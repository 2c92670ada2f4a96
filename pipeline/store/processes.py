"""Which process a file belongs to, by the file's name, and whether that process still runs.

A tag `MACHINE-PID-START` is in the names of temporary files and of signs of life. The system lists the processes of this machine
by id and start time. Of another machine only the age of a file is known, measured with the clock of the file system, because the
clocks of two machines differ. Standard library only.
"""

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.store.own_files import reads_own_files

SILENT_SECONDS = 600.0  # after which a process of another machine that gives no sign of life is taken for dead
_BEAT_SECONDS = 30.0
_UNKNOWN = "unknown"  # when a process began, on a system without /proc
_SIGN = ".process."  # a file with this prefix: the process whose tag follows is at work here


def own_tag() -> str:
    """The tag of this process."""
    pid, _, start = running_process(os.getpid()).partition(" ")
    return f"{_machine_digest()}-{pid or os.getpid()}-{start or _UNKNOWN}"


def is_gone(tag: str, path: Path, silent_seconds: float) -> bool:
    """Whether the process `tag`, which last wrote to `path`, has ended. Of another machine, and for text that is no tag: whether
    `path` is older than `silent_seconds`."""
    place, _, process = tag.partition("-")
    pid, _, start = process.partition("-")
    if place == _machine_digest() and start not in ("", _UNKNOWN):
        ended = has_ended(f"{pid} {start}")
        if ended is not None:
            return ended
    try:
        changed = path.stat().st_mtime
    except FileNotFoundError:
        return True
    return _file_system_now(path.parent) - changed > silent_seconds


def sign_life(directory: Path) -> Path:
    """Leave a sign in `directory` that this process is at work there. It counts until the process ends or removes it."""
    directory.mkdir(parents=True, exist_ok=True)
    sign = directory / f"{_SIGN}{own_tag()}"
    sign.touch()
    return sign


@contextlib.contextmanager
def signs_of_life(directory: Path) -> Iterator[None]:
    """Signs of life as by `sign_life`, renewed every 30 s for other machines to see, and removed at the end."""
    sign = sign_life(directory)
    try:
        with repeating(sign.touch):
            yield
    finally:
        with contextlib.suppress(OSError):
            sign.unlink(missing_ok=True)


@contextlib.contextmanager
def repeating(sign: Callable[[], None]) -> Iterator[None]:
    """Call `sign` every 30 s in a thread: a sign of life for other machines to see."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a full or read-only disk ends the run itself
                sign()

    thread = threading.Thread(target=renew, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def signs(directory: Path) -> list[Path]:
    """The signs in `directory`, also those of processes that were killed."""
    return sorted(directory.glob(f"{_SIGN}*"))


def is_alive(sign: Path) -> bool:
    """Whether the process that left `sign` still runs."""
    return not is_gone(sign.name.removeprefix(_SIGN), sign, SILENT_SECONDS)


@reads_own_files("of the kernel")
def machine() -> str:
    """Identifies the set of visible process ids: host, boot and process namespace. Unique where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {time.time_ns()}"  # equal to no other: then only the age decides


@reads_own_files("of the kernel")
def running_process(pid: int) -> str:
    """A process id with its start time, so that a reused id is recognised as another process; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else f"{pid} {fields[19]}"


def has_ended(process: str) -> bool | None:
    """Whether a process of this machine, as `running_process` names it, has ended. None where the system does not report it: for
    text that names no process, and for another user's where /proc hides those (`hidepid`)."""
    pid, _, start = process.partition(" ")
    if not (pid.isascii() and pid.isdecimal() and start):
        return None
    if running := running_process(int(pid)):
        return running != process
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return None
    except (ProcessLookupError, OverflowError):
        pass
    return True


@functools.cache
def _machine_digest() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:12]


def _file_system_now(directory: Path) -> float:
    """The time by the clock that dates the files in `directory`; this machine's where nothing can be written."""
    probe = directory / f".clock.{secrets.token_hex(8)}.partial"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
