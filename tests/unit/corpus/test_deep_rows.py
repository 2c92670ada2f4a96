"""Rows that are nested too deep: rejected with the reason, whatever is done with the row."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.json_values import MOST_LEVELS
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.corpus.traffic import Traffic
from pipeline.errors import UsageError


def _reasons(path: Path, **settings: Any) -> list[str]:
    source, found = PromptSource(path=str(path), **settings), []
    for row in Traffic(SourceReader(0, source, path), source, date(2026, 1, 1)):
        try:
            parse_row(row.value, source)
            found.append("")
        except BadRow as bad:
            found.append(str(bad))
    return found


@pytest.mark.parametrize(("levels", "redact"), [(65, True), (65, False), (600, True), (990, False), (100_000, True)])
def test_a_row_with_nested_lists_in_a_column_that_nobody_reads(tmp_path: Path, levels: int, redact: bool) -> None:
    """Redaction goes through the whole row."""
    path = tmp_path / "prompts.jsonl"
    deep = "[" * levels + "]" * levels
    path.write_text(f'{{"prompt": "Why?"}}\n{{"prompt": "How?", "x": {deep}}}\n')
    assert ["", f"broken JSON: nested more than {MOST_LEVELS} levels deep"] == _reasons(path, redact=redact)


@pytest.mark.parametrize("as_text", [True, False])
def test_tool_schemas_of_200_levels(tmp_path: Path, as_text: bool) -> None:
    """As JSON, and as JSON within a text."""
    path = tmp_path / "prompts.jsonl"
    schema = '{"a":' * 200 + "1" + "}" * 200
    tools = f'[{{"type": "function", "function": {schema}}}]'
    quoted = '"' + tools.replace('"', '\\"') + '"'
    path.write_text(f'{{"prompt": "Why?", "tools": {quoted if as_text else tools}}}\n')
    (reason,) = _reasons(path)
    assert reason.endswith(f"nested more than {MOST_LEVELS} levels deep")


def test_an_array_of_rows_has_the_same_bound(tmp_path: Path) -> None:
    """A deep row costs only itself."""
    path = tmp_path / "prompts.json"
    path.write_text('[{"prompt": "Why?"}, {"prompt": "How?", "x": ' + "[" * 300 + "]" * 300 + "}]")
    assert ["", f"broken JSON: nested more than {MOST_LEVELS} levels deep"] == _reasons(path)


def test_a_parquet_column_that_is_nested_too_deep(tmp_path: Path) -> None:
    """The column is named, if it is read at all."""
    kind = pa.string()
    for _ in range(80):
        kind = pa.list_(kind)
    table = pa.table({"prompt": ["Why?"], "messages": pa.array([None], kind), "x": pa.array([None], kind)})
    pq.write_table(table, tmp_path / "prompts.parquet")
    with pytest.raises(UsageError, match="column messages is nested more than 64 levels deep"):
        _reasons(tmp_path / "prompts.parquet")
