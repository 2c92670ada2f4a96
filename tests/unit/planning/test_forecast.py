"""Rows that a run will use, before it runs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.config.loading import load_config, parse_config
from pipeline.config.root import Config
from pipeline.planning.forecast import forecast

CONFIG = Path(__file__).parents[3] / "configs" / "qwen3-8b.yaml"


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


def test_recorded_answers_are_counted(tmp_path: Path) -> None:
    """Those that can be used, where a source uses them; unknown where no row is read."""
    rows: list[object] = [
        {"prompt": "a", "answer": {"content": "b", "finish_reason": end}} for end in ("stop", "length", None)
    ]
    rows += [{"prompt": "a"}, {"prompt": "a", "answer": "b"}]
    path, found = tmp_path / "log.jsonl", list[int | None]()
    wanted: list[dict[str, object]] = [{"use_answers": True}, {"use_answers": True, "finish_reason": "stop"}, {}]
    for keys in wanted:
        found.append(forecast(_config(path, rows, keys)).recorded_answers)
    found.append(forecast(_config(path, rows, {"use_answers": True}, {"rows": 9})).recorded_answers)
    assert [2, 4, 0, None] == found


def _rows(path: Path, rows: Sequence[object], keys: dict[str, object]) -> int:
    return forecast(_config(path, rows, keys)).rows


def _config(
    path: Path, rows: Sequence[object], keys: dict[str, object], plan: dict[str, object] | None = None
) -> Config:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "name": "t",
        "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
        "corpus": {"sources": [{"path": str(path), **keys}]},
    }
    return parse_config({**raw, "plan": plan or {}}, "t")


@pytest.mark.parametrize(("rows", "train"), [(1_000, 600), (100, 60)])
def test_upper_bounds_of_what_is_generated(rows: int, train: int) -> None:
    """Every row is a prompt and every completion as long as it may be; on-policy rounds have no more prompts than there are, and
    each point of the learning curve has rounds of its own."""
    settings = (
        f"plan.rows={rows}",
        "corpus.splits={train: 0.6, dev: 0.1, examination: 0.3}",
        "distill.on_policy={rounds: 2, prompts: 100}",
        "distill.learning_curve=[0.5]",
        "generate.max_new_tokens=512",
        "generate.lookahead=16",
        "generate.distribution_tokens=50",
    )
    by_target, by_draft = forecast(load_config(CONFIG, settings)).generate

    completions = 1.3 * rows
    assert ("generate", completions, completions * 512 + 0.6 * rows * 16) == (
        by_target.job,
        by_target.completions,
        by_target.tokens,
    )
    assert by_target.tokens * (11 + 3 * 50) == by_target.stored_bytes
    assert (2 * min(100, train) * 2, 2 * min(100, train) * 2 * 512) == (by_draft.completions, by_draft.tokens)
