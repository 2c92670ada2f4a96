"""Rows that a run will use, before it runs."""

import json
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
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "name": "t",
        "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
        "corpus": {"sources": [{"path": str(path), **keys}]},
    }
    assert expected == forecast(parse_config(raw, "t")).rows
