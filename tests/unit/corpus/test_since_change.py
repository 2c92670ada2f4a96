"""What is said where there is nothing to learn from a change."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.corpus import CorpusConfig
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.since_change import check_log, check_rows, why_no_log
from pipeline.errors import UsageError

SINCE = "2026-11-24T10:00:00Z"


def reader(path: str, has_times: bool = True) -> SourceReader:
    """Of a source whose time would be in `created`."""
    found: Any = SimpleNamespace(
        path=Path(path),
        columns=SimpleNamespace(has_times=has_times),
        source=SimpleNamespace(time_field="created"),
    )
    return cast(SourceReader, found)


def config(since: str | None) -> CorpusConfig:
    return CorpusConfig.model_validate({"sources": [{"path": "log.jsonl"}], "since": since})


def test_one_source_with_times_is_a_log() -> None:
    """Fixed prompts may stand beside it."""
    assert why_no_log([reader("fixed.jsonl", False), reader("log.jsonl")]) is None


def test_sources_without_times_are_named_with_what_they_lack() -> None:
    """A name with control characters is shown, not printed. Without a source, as with the reference pair, none is named."""
    found = why_no_log([reader("a\x1b[2J.jsonl", False), reader("b.jsonl", False)])
    assert found is not None
    assert "no source has times (" == found[:21]
    assert "b.jsonl has no column 'created')" in found
    assert "\x1b" not in found
    assert "no source has times; name the column" == str(why_no_log([]))[:36]


def test_without_a_change_no_log_is_needed() -> None:
    check_log(config(None), [reader("fixed.jsonl", False)])
    check_rows(config(None), [])
    check_log(config(SINCE), [reader("log.jsonl")])
    with pytest.raises(UsageError, match=rf"corpus.since = {SINCE}: no source has times \(fixed.jsonl has no column"):
        check_log(config(SINCE), [reader("fixed.jsonl", False)])


def test_one_log_with_rows_since_the_change_is_enough() -> None:
    check_rows(config(SINCE), [(reader("idle.jsonl"), 0, 1.0), (reader("log.jsonl"), 1, 2.0)])


@pytest.mark.parametrize(
    ("newest", "said"),
    [
        ((1.7e9, 1.6e9), "; the newest is of 2023-11-14T22:13:20Z;"),
        ((None, 1.7e9), "; the newest is of 2023-11-14T22:13:20Z;"),
        ((1e300, None), "; the newest is of 1000000"),
        ((None, None), f"corpus.since = {SINCE} or later; wait until"),
    ],
)
def test_the_newest_row_of_all_logs_is_named(newest: tuple[float | None, float | None], said: str) -> None:
    """Also one of a time that no calendar has, and none where no row has a time."""
    logs = [reader("a\x1b.jsonl"), reader("b.jsonl")]
    with pytest.raises(UsageError) as caught:
        check_rows(config(SINCE), [(log, 0, time) for log, time in zip(logs, newest, strict=True)])
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert ", b.jsonl: no row is of corpus.since" in str(caught.value)
