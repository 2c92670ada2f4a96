"""Hypothesis strategies for damaged files: a valid document with nodes replaced, text with stretches replaced, and noise."""

import copy
import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import strategies as st

from tests.damage import MORE_PIECES, MORE_VALUES, PIECES, TEXTS, VALUES, json_text

odd_values = st.sampled_from(VALUES + MORE_VALUES)
_pieces = st.sampled_from(PIECES + MORE_PIECES)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | odd_values
json_values = odd_values | st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, documents: Sequence[Any]) -> Any:
    """A copy of one of `documents` with up to three of its nodes replaced, left out, doubled or renamed."""
    holder = [copy.deepcopy(draw(st.sampled_from(documents)))]
    for _ in range(draw(st.integers(0, 3))):
        parent, key = draw(st.sampled_from(list(_places(holder))))
        what = draw(st.sampled_from(("replace", "replace", "replace", "leave out", "double")))
        if parent is holder or what == "replace":
            parent[key] = copy.deepcopy(draw(json_values))
        elif what == "leave out":
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        else:
            parent[str(draw(odd_values))] = parent[key]
    return holder[0]


def _places(parent: Any) -> Iterator[tuple[Any, Any]]:
    """Every node of a document, as what holds it and its key there."""
    for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
        yield parent, key
        if isinstance(parent[key], dict | list):
            yield from _places(parent[key])


@st.composite
def scrambled(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """Text with up to three stretches left out, doubled or replaced, and sometimes its end cut off."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from((0, 1, 4, 20, 200))))
        part = draw(_pieces | st.just(text[start:end] * 2) | st.binary(max_size=4))
        text = text[:start] + part + (text[end:] if draw(st.integers(0, 9)) else b"")
    return text


def damaged(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Texts as they are, scrambled, or replaced by noise."""
    return texts | scrambled(texts) | st.binary(max_size=60) | st.sampled_from(TEXTS) | _pieces


def json_files(*documents: Any) -> st.SearchStrategy[bytes]:
    """JSON files that were valid documents once, and files that never were."""
    return damaged(mutated(documents).map(json_text) | json_values.map(json_text))


@st.composite
def csv_text(draw: st.DrawFn, columns: Sequence[str], most_rows: int) -> bytes:
    """A table of plausible and odd numbers under some of `columns`, in several encodings and dialects."""
    header = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=6))
    cell = st.integers(0, 64) | st.floats(0.001, 100) | odd_values
    rows = draw(st.lists(st.lists(cell, max_size=len(header) + 1), max_size=most_rows))
    out = io.StringIO()
    csv.writer(out, delimiter=draw(st.sampled_from(",;\t"))).writerows([header, *rows])
    return out.getvalue().encode(draw(st.sampled_from(("utf-8", "utf-8-sig", "latin-1", "utf-16"))), errors="replace")


def yaml_text(value: Any) -> bytes:
    """The YAML text of a mutated document."""
    return yaml.safe_dump(value).encode()


def parquet_file(rows: Sequence[Any]) -> bytes:
    """A Parquet file with the columns of `rows`; a column that Parquet has no type for is written as JSON text."""
    names = {str(name).encode(errors="replace").decode() for row in rows if isinstance(row, dict) for name in row} or {
        "prompt"
    }
    columns = {
        name: _column([row.get(name) if isinstance(row, dict) else row for row in rows]) for name in sorted(names)
    }
    return _parquet(columns)


def _column(values: list[Any]) -> pa.Array:
    try:
        column = pa.array(values)
        _parquet({"": column})
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return pa.array([json.dumps(value) for value in values])
    return column


def _parquet(columns: dict[str, pa.Array]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()
