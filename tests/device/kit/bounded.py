"""Programs that a part starts: they have until its end, and end with all that they have started."""

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO


class TimedOut(Exception):
    """A program had not ended at the end of its part, and was ended then."""


def run_until(
    until: float, command: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Its exit code and what it said. `until`: of time.monotonic(). Raises TimedOut with its last line."""
    with _file() as out, _file() as err, started(command, cwd, environment, out, err) as process:
        try:
            wait_until(until, process)
        except TimedOut as error:
            last = [line for file in (out, err) for line in _text(file).splitlines() if line.strip()][-1:]
            raise TimedOut(f"{error}; its last line: {last[0][-200:]}" if last else str(error)) from None
        return subprocess.CompletedProcess(list(command), process.returncode, _text(out), _text(err))


@contextlib.contextmanager
def started(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    out: IO[str] | int = subprocess.DEVNULL,
    err: IO[str] | int = subprocess.DEVNULL,
) -> Iterator["subprocess.Popen[str]"]:
    """The program, which ends at the latest with the block. It writes to files: a pipe would stay open for as long as anything
    that it has started."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=out, stderr=err, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(until: float, process: "subprocess.Popen[str]") -> None:
    """Until it has ended. Raises TimedOut if it has not by then."""
    try:
        process.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimedOut("it had not ended when the time of its part was over (--seconds), and was ended") from None


def _file() -> IO[str]:
    return tempfile.TemporaryFile("w+", errors="replace")


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
