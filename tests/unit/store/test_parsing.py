"""Typed reading of machine-written files."""

import json
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipeline.errors import UnderstudyError
from pipeline.store.parsing import CountKey, Flag, Format, Text, Whole, format_of, parse, stored

_TABLE = TypeAdapter(dict[CountKey, bool])
_FORMAT = Format(name="thing", schema=1, remedy="make it again", content=dict[str, Whole | Flag])


def test_keys_of_counts_are_read_as_written() -> None:
    """Numbers as keys become text in JSON, and numbers again."""
    table = {0: True, 5: False, 2**53 - 1: True}

    assert table == parse(_TABLE, json.loads(json.dumps(table))) == parse(_TABLE, table)


@pytest.mark.parametrize(
    "key", [" 5 ", "05", "+5", "5.0", "1_0", "-1", "", "٥", True, 5.0, None, "9" * 4000, str(2**53)]
)
def test_what_only_looks_like_a_count_is_no_key(key: Any) -> None:
    """Two keys that spell one number would be one entry, and which of them counts is chance."""
    with pytest.raises(ValueError, match=r"whole number|greater than or equal|less than"):
        parse(_TABLE, {key: True})


@pytest.mark.parametrize("schema", [True, 1.0, "1", None])
def test_another_type_of_schema_is_another_schema(schema: Any) -> None:
    """True and 1.0 are equal to 1 in Python, and not in JSON."""
    assert {"schema": 1, "seed": 3} == _FORMAT.parse({"schema": 1, "seed": 3}, "file")
    with pytest.raises(
        UnderstudyError, match=r"file: the thing has schema .*, and this version reads schema 1; make it again"
    ):
        _FORMAT.parse({"schema": schema}, "file")


def test_a_link_to_nowhere_is_a_missing_file_and_not_none(tmp_path: Path) -> None:
    """Else a file on a disk that is not mounted would count as never written."""
    path = tmp_path / "thing.json"
    assert _FORMAT.find(path) is None
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UnderstudyError, match=r"thing\.json: no such file"):
        _FORMAT.find(path)


@stored(name="note", schema=2, remedy="write it again")
class _Note:
    text: Text
    lines: list["_Line"]


@stored(kw_only=False)
class _Line:
    number: Whole


def test_a_stored_class_is_the_content_of_a_file() -> None:
    """It cannot be changed, its file says the schema, and it is read as it was written."""
    note = _Note(text="a", lines=[_Line(1)])

    assert {"schema": 2, "text": "a", "lines": [{"number": 1}]} == asdict(note)
    assert note == format_of(_Note).parse(asdict(note), "file")
    with pytest.raises(FrozenInstanceError):
        note.text = "b"  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        _Note("a", [])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"text": "a", "lines": []}, r"file: the note has schema None, .* reads schema 2; write it again"),
        ({"schema": 2, "text": "a", "lines": [], "x": 1}, r"file: not a complete note \(x: Unexpected .*; write it"),
        ({"schema": 2, "text": "a", "lines": [{"number": 1, "x": 1}]}, r"file: .*\(lines\.0\.x: Unexpected"),
        ({"schema": 2, "text": "", "lines": []}, r"file: not a complete note \(text: empty\); write it again"),
    ],
)
def test_what_a_stored_class_has_no_field_for_is_refused(raw: dict[str, Any], error: str) -> None:
    """At any depth; as is another schema, and what its check refuses."""

    def check(note: _Note) -> None:
        if not note.text:
            raise ValueError("text: empty")

    with pytest.raises(UnderstudyError, match=error):
        format_of(_Note, check=check).parse(raw, "file")
