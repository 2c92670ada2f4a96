"""What `understudy champion history` prints, and the lines it is read from."""

from dataclasses import replace

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.commands.champion import print_history
from pipeline.judgement.headline import gain_in_words
from pipeline.judgement.schema import ChampionVersion, Gains
from pipeline.registry.history import Change, read_change
from tests.decisions import make_decision

LINES = [
    "2026-11-23T01:20:54Z promote none -> 1 run 20261123-011846-quickstart-b24f",
    "2026-11-24T01:20:54Z rollback 1 -> none by ann",
    "2026-11-25T01:20:54Z register none -> 2 run r because gain 3.1 points [2.0, 4.2] over the base draft",
]


def test_each_change_is_a_row_under_headers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row says what moved and the run. Who made a change and why follows; all fits into 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    print_history([read_change(number, line) for number, line in enumerate(LINES, 1)])

    assert [
        ["change", "time", "(UTC)", "action", "version", "run"],
        ["1", "2026-11-23", "01:20:54", "promote", "none", "->", "1", "20261123-011846-quickstart-b24f"],
        ["2", "2026-11-24", "01:20:54", "rollback", "1", "->", "none", "-"],
        ["3", "2026-11-25", "01:20:54", "register", "none", "->", "2", "r"],
        ["change", "2:", "by", "ann"],
        ["change", "3:", "gain", "3.1", "points", "[2.0,", "4.2]", "over", "the", "base", "draft"],
    ] == [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_read_as_it_was_written() -> None:
    """Lines of earlier versions too; a name with a space stays one word, and a line altered by hand is shown whole."""
    change = Change(number=7, time="t", action="approve", old="1", new="2", run="r", by="Ann Lee", why="gain by far")
    assert LINES == [read_change(1, line).line for line in LINES]
    assert "t approve 1 -> 2 run r by Ann_Lee because gain by far" == change.line
    assert "altered" == read_change(1, "altered").why


def test_a_gain_is_said_with_its_interval() -> None:
    """In points of acceptance; a decision without an interval says nothing."""
    gains = Gains(Figure(0.031, 0.02, 0.042, 50), {}, {})
    decision = make_decision(baseline="champion", champion=ChampionVersion("draft", "2"), gains=gains)
    assert "+3.10 points [+2.00, +4.20] over the champion (version 2)" == gain_in_words(decision)
    unknown = replace(gains, acceptance_rate=Figure(0.031, None, None, 3))
    assert "" == gain_in_words(make_decision(gains=unknown)) == gain_in_words(make_decision(gains=None))
