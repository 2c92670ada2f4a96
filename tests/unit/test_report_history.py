"""What `understudy champion history` prints."""

import pytest

from pipeline.registry.registry import Change
from pipeline.report.history import print_history


def test_each_change_is_a_row_under_headers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion names its run, a rollback has none; both fit into 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    print_history(
        [
            Change(1, "2026-11-23T01:20:54Z promote none -> 1 run 20261123-011846-quickstart-b24f"),
            Change(2, "2026-11-24T01:20:54Z rollback 1 -> none"),
        ]
    )

    assert [
        ["change", "time", "(UTC)", "action", "champion", "run"],
        ["1", "2026-11-23", "01:20:54", "promote", "none", "->", "1", "20261123-011846-quickstart-b24f"],
        ["2", "2026-11-24", "01:20:54", "rollback", "1", "->", "none", "-"],
    ] == [line.split() for line in capsys.readouterr().out.splitlines()]
