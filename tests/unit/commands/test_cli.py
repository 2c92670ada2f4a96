"""What `main` makes of an end that no command expects: a full disk, Ctrl-C, a defect."""

import errno
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main
from typer.models import OptionInfo

from pipeline import cli
from pipeline.commands import options
from pipeline.errors import Refused, UnderstudyError, UsageError


def _ends_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Callable[[], int]:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    return cli._main


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UnderstudyError("x"), 1, "x"),
        (UsageError("x"), 2, "x"),
        (Refused("x"), 3, "x"),
        (SystemExit(130), 130, "interrupted; finished artifacts are kept, run again to continue"),
        (OSError(errno.ENOSPC, "", "/store/x"), 1, "/store/x: no space left on the disk; free some space"),
        (OSError(errno.EDQUOT, "", "/store/x"), 1, "/store/x: the disk quota is used up"),
        (OSError(errno.EROFS, "", "/store/x"), 1, "/store/x: the file system is read-only; choose a writable --store"),
        (OSError(errno.EACCES, "", "/store/x"), 1, "/store/x: permission denied"),
        (_caused(RuntimeError("saving failed"), OSError(errno.ENOSPC, "")), 1, "the store: no space left on the disk"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "the store: no space left on the disk"),
        (RuntimeError("database or disk is full"), 1, "the store: no space left on the disk"),
        (RuntimeError("attempt to write a readonly database"), 1, "the store: the file system is read-only"),
    ],
    ids=repr,
)
def test_an_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    """Ours, an interruption, and a disk that is full or read-only, also if a library says so in its own words."""
    assert code == _ends_with(monkeypatch, error)()
    written = capsys.readouterr().err
    assert written.startswith(f"understudy: {line}")
    assert 1 == len(written.splitlines())


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOENT, "")], ids=repr)
def test_a_defect_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """What we cannot explain is printed as Python does, and is a failure."""
    assert 1 == _ends_with(monkeypatch, error)()
    written = capsys.readouterr().err
    assert written.startswith("Traceback (most recent call last):")
    assert type(error).__name__ in written.splitlines()[-1]


def test_a_scheduler_ends_a_command_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM raises KeyboardInterrupt, so that the run record says how the run ended."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "_main", lambda: 0)
    try:
        with pytest.raises(SystemExit):
            cli.main()
        for handler in (signal.default_int_handler, signal.SIG_IGN):  # some shells ignore SIGINT in the background
            monkeypatch.setattr(signal, "getsignal", lambda number, handler=handler: handler)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        monkeypatch.undo()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the installed package, with exit code 0."""
    monkeypatch.setattr("sys.argv", ["understudy", "--version"])
    monkeypatch.setattr(cli.importlib.metadata, "version", lambda name: f"of {name}")

    assert 0 == cli._main()
    assert "understudy of understudy\n" == capsys.readouterr().out


@pytest.mark.parametrize("named", [one for listed in cli.AIMS.values() for one in listed], ids=lambda one: one.example)
def test_an_example_fits_the_width_and_is_the_same_call(named: cli.Named) -> None:
    """The shell joins its lines again; an option and its value stay on one."""
    longest = max(map(len, named.example.split()), default=0)
    for width in (40, 60, 76, 200):
        lines = cli.shell_lines(f"understudy {named.example}", width)
        assert max(map(len, lines)) <= max(width, 2 * longest + 6)
        assert shlex.split(f"understudy {named.example}") == shlex.split("\n".join(lines).replace("\\\n", ""))


def test_the_usage_has_no_braces(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """People type what they see."""
    monkeypatch.setattr("sys.argv", ["understudy", "stage", "--help"])
    assert 0 == cli._main()
    said = capsys.readouterr().out
    assert "stage [OPTIONS] NAME CONFIG\n" in said
    assert "Example:\n    understudy stage" in said


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("--store=", 2, "--store': an empty path; is a variable of the shell not set?"),
        ("--store=~/x", 0, "/home/x: no runs here yet"),
        ("--store=y", 0, "y: no runs here yet"),
    ],
)
def test_a_store_is_where_the_shell_would_have_it(
    given: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bash leaves `~` behind `=`; an unset variable would make the current directory a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["understudy", "runs", given])

    assert code == cli._main()
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())
    assert [] == list(tmp_path.iterdir())


def test_every_option_of_a_path_is_read_as_a_shell_would() -> None:
    """By one parser: none takes `~` for the name of a directory, or nothing for the current one."""
    commands = [typer.main.get_command(cli.app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    given = [one.type_descriptor for command in commands for one in command.params]  # type: ignore[attr-defined]
    paths = [one.parameter_info for one in given if "Path" in repr(one.annotation)]
    parsers = {one.parser for one in paths if isinstance(one, OptionInfo)}
    assert {options._given_path} == parsers
