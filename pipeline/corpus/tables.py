"""Rows of columnar prompt files: Parquet, and `datasets` directories (`save_to_disk`). UsageError for unreadable files.

Reads only the requested columns. Does not depend on what a row means.
"""

from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from pipeline.corpus.json_values import MOST_LEVELS
from pipeline.corpus.other_requests import MEDIA
from pipeline.corpus.rows import BadRow
from pipeline.corpus.signatures import LENGTH, check_start
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.store.json_text import regular_file
from pipeline.store.own_files import reads_own_files

_BATCH = 256
_FEW = 64  # rows of all columns, some of which may be images


def _errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises for a damaged file: its own errors, and those of Python for values that Python cannot hold."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, OverflowError, LookupError, TypeError, MemoryError)


def count_parquet(path: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except _errors() as error:
        raise _unreadable(path, "Parquet", error) from None


def read_parquet(path: Path, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
    """(1-based row number, dict of those of `columns` that exist), with one batch in memory. None: of all columns."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = _present(path, file.schema_arrow.names, columns)
            _check_nesting(path, file.schema_arrow, wanted)
            batch = _BATCH if columns is not None and set(MEDIA).isdisjoint(wanted) else _FEW
            yield from _numbered(file.iter_batches(batch_size=batch, columns=wanted))
    except _errors() as error:
        raise _unreadable(path, "Parquet", error) from None


def count_dataset(path: Path) -> int:
    """Rows of a directory that `save_to_disk` wrote."""
    return len(_dataset(path))


def read_dataset(path: Path, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
    """The rows as `read_parquet` gives them, from a directory that `save_to_disk` wrote."""
    rows = _dataset(path)
    rows = rows.select_columns(_present(path, rows.column_names, columns)).with_format("arrow")
    yield from _numbered(rows.iter(batch_size=_BATCH if columns is not None else _FEW))


@reads_own_files("read by the datasets library, whose errors are caught (tests/integration/test_bad_input.py)")
def _dataset(path: Path) -> Any:
    """A memory-mapped Dataset; for a DatasetDict its only split (UsageError if there are several)."""
    import datasets

    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(path, "a datasets directory", error) from None
    if not isinstance(dataset, Mapping):
        return dataset
    if len(dataset) != 1:
        raise UsageError(
            f"{path}: contains the splits {', '.join(dataset)}; name one, for example {path / next(iter(dataset))}"
        )
    return next(iter(dataset.values()))


def _present(path: Path, names: list[str], columns: list[str] | None) -> list[str]:
    """The configured columns that exist. UsageError for a file without any prompt column."""
    if columns is None:
        return names
    if not set(names) & set(columns[:3]):
        raise UsageError(
            f"{path}: row 1: no column {' or '.join(columns[:3])} among "
            f"{printable(', '.join(names[:12]))}; set prompt_field, messages_field or turns_field of the source"
        )
    return [name for name in columns if name in names]


def _check_nesting(path: Path, schema: Any, columns: list[str]) -> None:
    """UsageError for a column whose type is nested too deep."""
    for name in columns:
        level = [schema.field(name).type]
        for _ in range(MOST_LEVELS):
            level = [kind.field(place).type for kind in level for place in range(kind.num_fields)]
        if level:
            raise UsageError(
                f"{path}: column {printable(name)} is nested more than {MOST_LEVELS} levels deep; leave it out"
            )


def _numbered(batches: Any) -> Iterator[tuple[int, Any]]:
    number = 0
    for batch in batches:
        for value in _values(batch):
            number += 1
            yield number, value


def _values(batch: Any) -> list[Any]:
    """Rows of an Arrow batch as dicts. Arrow does not check UTF-8 on reading, so invalid strings are found here."""
    try:
        return [{name: _as_json(item) for name, item in row.items()} for row in batch.to_pylist()]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [BadRow("invalid unicode", "not UTF-8")]
        return [value for row in range(batch.num_rows) for value in _values(batch.slice(row, 1))]


def _as_json(value: Any) -> Any:
    """A cell as the JSON that was stored in it. Arrow gives all structs of a column the same fields, so a null in one is a key
    that is absent there, however deep; times within structs and lists become ISO 8601. A cell that is a time stays one."""
    if isinstance(value, dict):
        return {name: _inner(item) for name, item in value.items() if item is not None}
    return [_inner(item) for item in value] if isinstance(value, list) else value


def _inner(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime | date | time) else _as_json(value)


def _unreadable(path: Path, what: str, error: Exception) -> UsageError:
    """The error of a file or directory. Raises another UsageError where the first bytes state what the file is."""
    if path.is_file():
        with regular_file(path) as stream:
            check_start(path, stream.read(LENGTH), what)
    return UsageError(f"{path}: not readable as {what}: {' '.join(str(error).split())[:200]}")
