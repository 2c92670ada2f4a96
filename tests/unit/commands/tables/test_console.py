"""Reports fit the terminal: figures are never broken, and nothing is cut off."""

import io

import pytest
from rich.console import Console

from pipeline.commands.tables.console import NO_BREAK, Report

COLUMNS = ("draft", "acceptance rate", "tokens / target call")
ROWS = [["base draft, old target", "0.677 [0.666, 0.688]", "2.48 [2.43, 2.54]"], ["candidate", "0.806", "3.14"]]


def _printed(width: int, text: str = "") -> list[str]:
    stream = io.StringIO()
    report = Report(Console(file=stream, width=width, highlight=False))
    report.piped = False
    if text:
        report.text(text, indent=2)
    else:
        report.table(COLUMNS, ROWS, left=("draft",))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 55, 64, 66, 72, 80, 100, 140])
def test_every_figure_is_whole_at_every_width(width: int) -> None:
    """No line is longer than the terminal, and each figure stands on one line."""
    lines = _printed(width)
    figures = [cell for row in ROWS for cell in row[1:]]

    assert [] == [line for line in lines if len(line) > max(width, 45)]  # the list needs 45
    assert [] == [figure for figure in figures if not any(figure in line for line in lines)]


def test_the_frame_goes_first_and_a_list_comes_last() -> None:
    """A frame where there is room, none below, then names broken between words, then a row as a list."""
    kinds = {width: _printed(width) for width in (100, 66, 56, 30)}

    assert kinds[100][0].startswith("┏")
    assert not any("│" in line for line in kinds[66])
    assert any(line.startswith("base draft, old target  ") for line in kinds[66])
    assert any(line.split() == ["target"] or line.startswith("old target") for line in kinds[56])
    assert "acceptance rate       0.677 [0.666, 0.688]" in kinds[30]


def test_a_long_text_takes_the_room_that_there_is() -> None:
    """It is broken into as few lines as fit beside the other columns."""
    verdict = "promoted as version 1, but not faster than plain decoding on this machine (x0.95 [0.84, 1.00])"
    stream = io.StringIO()
    row = ["20261125-133622-lt-e1d1", verdict, "+3.96 [+3.68, +4.23]", "2026-11-25 13:36"]
    Report(Console(file=stream, width=120)).table(("run", "verdict", "gain", "started"), [row], left=("run", "verdict"))

    assert 3 == len(stream.getvalue().splitlines())


def test_sentences_are_broken_between_words_and_indented() -> None:
    """A space that must not be broken is printed as a space."""
    assert ["done: pair", "  1 s, corpus", "  2 s"] == _printed(
        13, "done: pair 1 s, corpus 2 s".replace(" s", f"{NO_BREAK}s")
    )


def test_a_pipe_gets_whole_sentences(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Log files and greps see one line per sentence, unless COLUMNS asks for a width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    Report().text("word " * 100)
    monkeypatch.setenv("COLUMNS", "40")
    Report().text("word " * 100)
    whole, *broken = capsys.readouterr().out.splitlines()

    assert 500 >= len(whole) >= 499
    assert 40 >= max(map(len, broken))


def test_names_are_printed_as_they_are() -> None:
    """A name is no markup and no emoji, and wide characters are not cut off."""
    stream = io.StringIO()
    report = Report(Console(file=stream, width=60, highlight=False, emoji=False))
    report.table(("draft", "MB"), [["my[draft][/x]", "1"], ["漢字漢字漢字", "2"], [":warning:", "3"]], left=("draft",))
    report.line("/models/:warning:/x")

    for text in ("my[draft][/x]", "漢字漢字漢字", ":warning:", "/models/:warning:/x"):
        assert text in stream.getvalue()


def test_a_column_is_as_wide_as_its_wide_characters() -> None:
    """Each takes two cells of a terminal."""
    stream = io.StringIO()
    Report(Console(file=stream, width=60)).table(("draft",), [["漢字漢字漢字"]], left=("draft",))

    assert "│ 漢字漢字漢字 │" in stream.getvalue()


def test_a_report_of_its_own_replaces_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a command prints to stdout, too."""
    Report().line("/models/:warning:/x")

    assert "/models/:warning:/x\n" == capsys.readouterr().out
