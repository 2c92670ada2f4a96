"""What `understudy champion history` prints, and the lines it is read from."""

import pytest

from pipeline.judgement.headline import gain_in_words
from pipeline.registry.history import Change, read_change
from pipeline.report.history import print_history

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
    gain = {"value": 0.031, "low": 0.02, "high": 0.042, "prompts": 50}
    decision = {"baseline": "champion", "champion": {"version": "2"}, "gains": {"acceptance_rate": gain}}
    assert "+3.10 points [+2.00, +4.20] over the champion (version 2)" == gain_in_words(decision)
    none = {"baseline": "base", "gains": {"acceptance_rate": {**gain, "low": None}}}
    assert "" == gain_in_words(none) == gain_in_words({"gains": {}})
