"""A column that is named and that no row has is told; one that a single row has is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceReader
from pipeline.errors import UsageError


def _reader(tmp_path: Path, *rows: Any, **keys: Any) -> SourceReader:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = SourceReader(0, PromptSource(path=str(path), **keys), path, option="--prompts")
    assert len(rows) == len(list(reader))
    return reader


@pytest.mark.parametrize(
    "key", ["messages_field", "domain_field", "group_field", "system_field", "tools_field", "time_field"]
)
def test_a_misspelled_column_is_told(tmp_path: Path, key: str) -> None:
    """Though the rows have prompts, which are read without it; with what it may mean."""
    reader = _reader(tmp_path, {"prompt": "a", "special": "b"}, **{key: "specail"})

    assert [key] == list(reader.missing)
    with pytest.raises(
        UsageError, match=rf"^--{key.replace('_', '-')}: .*'specail'; other .*; did you mean special\?$"
    ):
        reader.require_named()


def test_a_column_of_some_rows_is_there(tmp_path: Path) -> None:
    """In the row itself or in its request; and defaults are no wish."""
    rows = [{"prompt": "a"}, {"prompt": "b", "kind": "x"}, {"request": {"prompt": "c"}, "team": "y"}]

    assert {} == _reader(tmp_path, *rows, domain_field="kind", group_field="team").missing
    assert {} == _reader(tmp_path, *rows).missing


def test_the_domain_of_all_rows_needs_no_column(tmp_path: Path) -> None:
    """`domain` goes before `domain_field`."""
    assert {} == _reader(tmp_path, {"prompt": "a"}, domain="code", domain_field="kind").missing
