"""Rows that a run will use, before it runs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.config.loading import parse_config
from pipeline.planning.forecast import forecast


@pytest.mark.parametrize(
    ("keys", "expected"), [({}, 30), ({"since": "14d"}, 10), ({"sample": 20}, 20), ({"since": "14d", "sample": 4}, 4)]
)
def test_rows_of_the_window_and_the_sample_are_counted(tmp_path: Path, keys: dict[str, object], expected: int) -> None:
    """Of 30 rows, 10 are of the last 14 days."""
    now = datetime.now(UTC)
    rows = [
        {"prompt": f"p{number}", "created": (now - timedelta(days=number // 10 * 20)).isoformat()}
        for number in range(30)
    ]
    assert expected == _rows(tmp_path / "log.jsonl", rows, keys)


def test_each_answer_of_a_session_is_counted(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": turn * 3}, {"messages": turn}]
    assert [2, 4] == [_rows(tmp_path / "log.jsonl", rows, {"every_answer": every}) for every in (False, True)]


def _rows(path: Path, rows: Sequence[object], keys: dict[str, object]) -> int:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "name": "t",
        "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
        "corpus": {"sources": [{"path": str(path), **keys}]},
    }
    return forecast(parse_config(raw, "t")).rows
