"""Other programs, each in a session of its own: what ends a call early ends the program with all that it has started."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO

_HEARD = 1 << 20  # bytes at once


def call(
    command: Sequence[str],
    *,
    given: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    hear: Callable[[str], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` with `given` as its input. Raises subprocess.TimeoutExpired after `seconds`, and OSError where it cannot be
    started; in both cases, and at an interrupt, nothing of it goes on. What ends this process without an exception does not end
    the program. `hear` is given each line of its standard error, about a second after it was written; then there is no limit of
    `seconds`."""
    # Files and not pipes: a process that it leaves in the background would keep a pipe open.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong, tempfile.TemporaryFile() as asked:
        asked.write(given.encode())
        asked.seek(0)
        process = subprocess.Popen(
            command, env=environment, stdin=asked, stdout=said, stderr=wrong, start_new_session=True
        )
        try:
            code = process.wait(seconds) if hear is None else _heard(process, wrong, hear)
        except BaseException:
            end_session(process)
            raise
        texts = []
        for stream in (said, wrong):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return subprocess.CompletedProcess(command, code, *texts)


def end_session(process: "subprocess.Popen[bytes]") -> int:
    """End a process that leads a session with all that it has started, which may go on after it has ended itself. Returns its
    exit code."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.returncode is None:  # nobody has waited for it, so its number is still its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _heard(process: "subprocess.Popen[bytes]", stream: IO[bytes], hear: Callable[[str], None]) -> int:
    """Wait for the end. Its file is read by position: the program writes where the file stands."""
    code, at, begun = None, 0, b""
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(1)
        while some := os.pread(stream.fileno(), _HEARD, at):
            at += len(some)
            *lines, begun = (begun + some).split(b"\n")
            for line in lines:
                hear(line.decode(errors="replace"))
    if begun:
        hear(begun.decode(errors="replace"))
    return code
