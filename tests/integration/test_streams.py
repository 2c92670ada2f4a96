"""Standard streams that are closed, full, lose their reader, or lack a character: the work and its exit code stay."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import beginning_of
from tests.integration.conftest import SMOKE, Place, command_line, loop, place, smoke

__all__ = ["loop", "place", "smoke"]


def _shell(place: Place, arguments: str, redirections: str, **extra: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose streams a shell has set up."""
    line = " ".join((*command_line(), arguments, "--store", str(place.store), redirections))
    ended = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        cwd=place.cwd,
        env=place.environment(**extra),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "redirections",
    ["| true", "2>/dev/full", "<&- >&- 2>&-"],
    ids=["reader gone", "log full", "none at all"],
)
def test_streams_that_nobody_reads_change_no_exit_code(loop: Place, redirections: str) -> None:
    """The reader wants no more; the log is not the result."""
    assert (0, "") == _shell(loop, "runs", redirections)


@pytest.mark.long
def test_a_refusal_stays_a_refusal_behind_a_pipe(loop: Place) -> None:
    """Exit code 3, whoever reads: a regression must not look like a failure of the machine."""
    shutil.rmtree(loop.store / "mlflow")  # no champion
    code, err = _shell(loop, f"run {SMOKE} --set gate.min_gain=0.9", "2>&1 | true")
    assert (3, "") == (code, err)


def test_a_result_that_cannot_be_written_is_named(loop: Place) -> None:
    """A file on a full disk is not blamed on the store."""
    code, err = _shell(loop, "runs", ">/dev/full")
    assert (1, True) == (code, err.startswith("understudy: standard output: no space left on the disk")), err
    assert 1 == err.count("\n")


def test_a_character_that_the_terminal_lacks_is_an_escape(loop: Place) -> None:
    """As the gamma of a table, in a terminal of another encoding."""
    code, err = _shell(loop, "show", "", PYTHONIOENCODING="ascii")
    assert (0, "") == (code, err)


@pytest.mark.parametrize("columns", ["0", "²", "9" * 5000, "wide"])
def test_a_width_that_is_none_is_ignored(loop: Place, columns: str) -> None:
    """Some terminals and schedulers set COLUMNS to 0."""
    expected, ended = loop.understudy("show"), loop.understudy("show", COLUMNS=columns)
    assert (0, expected.out) == (ended.code, ended.out), ended.err


def test_a_library_does_not_write_into_a_file_of_the_store(tmp_path: Path) -> None:
    """With stderr closed, the next file to be opened would be descriptor 2."""
    code = (
        "import os\nfrom pipeline.commands.standard_streams import protect\nprotect()\n"
        f"file = open({str(tmp_path / 'weights')!r}, 'wb')\nos.write(2, b'a warning of C code')\nassert file.fileno() > 2"
    )
    ended = subprocess.run(
        ["bash", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code], check=False, timeout=60
    )
    assert (0, b"") == (ended.returncode, (tmp_path / "weights").read_bytes())


def test_a_terminal_that_goes_away_interrupts_a_run(loop: Place) -> None:
    """SIGHUP is told in the record as Ctrl-C is; writing to what is left of the terminal is no error. `nohup` goes on."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command_line(), "run", str(SMOKE), "--set", "distill.max_steps=61", "--run", "r", "--store", str(loop.store)],
        cwd=loop.cwd,
        env=loop.environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    seen = b""
    while beginning_of("distill").encode() not in b" ".join(seen.split()):  # a line is broken between words
        seen += os.read(ours, 4096)
    time.sleep(1)
    os.close(ours)
    assert (130, "interrupted") == (process.wait(timeout=60), loop.record("r")["state"])


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_nohup_is_respected(loop: Place) -> None:
    """A signal that the caller ignores stays ignored."""
    process = subprocess.Popen(
        [*command_line(), "runs", "--store", str(loop.store)],
        cwd=loop.cwd,
        env=loop.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    for _ in range(30):
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    assert 0 == process.wait(timeout=60)
