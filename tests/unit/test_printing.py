"""What is printed: text of users adds no line and no control character, on stdout, on stderr and in rich's tables and bars."""

import io
import sys

import pytest
from rich.console import Console

from pipeline import cli
from pipeline.commands.tables.console import Report
from pipeline.commands.tables.decode import Painter
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress, say, say_block, say_json

BAD = "a\x1b]0;x\x07\u202e[red]b[/red] [link=http://a.example]c[/link]\nunderstudy: ok"
SHOWN = "a\\x1b]0;x\\x07\\u202e[red]b[/red] [link=http://a.example]c[/link]\\nunderstudy: ok"


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Results, progress, warnings, errors and reports."""
    say(BAD)
    Progress(False).line(BAD)
    Progress(False).warn(BAD)
    Report(Console(width=200)).line(BAD)
    Report(Console(width=200)).text(BAD)
    printed = capsys.readouterr()

    assert [SHOWN] * 3 == printed.out.splitlines()
    assert [SHOWN, f"warning: {SHOWN}"] == printed.err.splitlines()


def test_an_error_stays_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lines are its arguments; a file name of the operating system's error is escaped too."""
    for error in (UnderstudyError(BAD), OSError(28, "full", BAD)):

        def fail(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(cli, "app", fail)
        assert 1 == cli._main()

    ours, theirs = capsys.readouterr().err.splitlines()
    assert f"understudy: {SHOWN}" == ours
    assert theirs.startswith(f"understudy: {SHOWN}: no space left")


def test_a_table_shows_names_as_they_are() -> None:
    """Cells and headers are no markup, and the column is as wide as what is shown."""
    stream = io.StringIO()
    Report(Console(file=stream, width=220)).table((BAD, "b"), [(BAD, "1")], left=(BAD,))
    lines = stream.getvalue().splitlines()

    assert 2 == sum(SHOWN in line for line in lines)
    assert 1 == len({len(line) for line in lines})


def test_a_bar_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels and notes of a bar are no markup."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(True).track(BAD, 4, "steps") as track:
        track.advance(1, BAD)

    printed = stream.getvalue()
    assert "[red]b[/red]" in printed
    assert "\x07" not in printed
    assert "\u202e" not in printed


def test_a_completion_keeps_its_lines_only() -> None:
    """A prompt and a decoded text of several lines are printed as such, without control characters."""

    class Tokenizer:
        def decode(self, tokens: list[int], **_: object) -> str:
            return "x\n" + BAD

    stream = io.StringIO()
    painter = Painter(Tokenizer(), Console(file=stream, width=220, highlight=False, soft_wrap=True))
    painter.begin(BAD)
    painter.plain([1], BAD)
    text = SHOWN.replace("\\n", "\n")

    assert f"prompt:\n{text}\n\ncompletion:\n{SHOWN}:\nx\n{text}\n" == stream.getvalue()


def test_json_is_ascii_and_blocks_keep_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON escapes by itself."""
    say_json({"é": BAD}, indent=None)
    say_block("a\n\x1bb\n")

    assert capsys.readouterr().out.endswith(
        '\\u001b]0;x\\u0007\\u202e[red]b[/red] [link=http://a.example]c[/link]\\nunderstudy: ok"}\na\n\\x1bb\n'
    )
