"""JSON files that end in lists too long for memory. Rows are kept on disk until the figures above them are known."""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.store.atomic import replacing, temporary_name
from pipeline.store.json_text import MOST_BYTES, parse_json, read_text, regular_file
from pipeline.store.parsing import Format

_LIST = re.compile(r'  ".*": \[')  # the line with which a list of rows begins


class RowFile:
    """Writes a JSON file whose last key holds lists of rows that are too long for memory.

    Use it as `with RowFile(path, names) as rows`: `rows.add(name, ...)` appends to one of the lists called `names`, and
    `rows.write(head, key)` writes `path`. Until then each list is a temporary file beside `path`. The temporary files are
    deleted at the end of the `with` block, also after an error.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self._paths = {name: temporary_name(path) for name in names}
        self._streams = {name: path.open("x+", encoding="utf-8") for name, path in self._paths.items()}

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, stream in self._streams.items():
            stream.close()
            self._paths[name].unlink(missing_ok=True)

    def add(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to one of the lists. ValueError for NaN, which JSON does not have."""
        stream = self._streams[name]
        for row in rows:
            if stream.tell():
                stream.write(",\n")
            stream.write(json.dumps(row, allow_nan=False, ensure_ascii=False))

    def clear(self) -> None:
        """Remove all rows."""
        for stream in self._streams.values():
            stream.seek(0)
            stream.truncate()

    def write(self, head: Mapping[str, Any], key: str) -> None:
        """Write the file in one step: `head`, then under `key` an object of the lists, one row per line."""
        with replacing(self._path) as partial, partial.open("w", encoding="utf-8") as out:
            text = json.dumps(head, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
            out.write(f"{text[: -len('}')].rstrip()},\n {json.dumps(key)}: {{")
            for number, (name, stream) in enumerate(self._streams.items()):
                out.write(f"{',' if number else ''}\n  {json.dumps(name)}: [\n")
                stream.flush()
                stream.seek(0)
                out.writelines(stream)
                out.write("\n  ]")
            out.write("\n }\n}\n")


def read_listed_rows(path: Path, key: str, name: str, kind: Format[Any]) -> Iterator[Any]:
    """The rows of the list `name` under `key` in a file that `RowFile` wrote, one at a time; the other lists are passed over. Any
    other JSON file is read whole.

    Raises as `kind.read`; KeyError where there is no such list.
    """
    with kind.naming(path), regular_file(path) as stream:
        lines = (line.rstrip("\n") for line in io.TextIOWrapper(stream, encoding="utf-8-sig"))
        if all(line != f" {json.dumps(key)}: {{" for line in lines):
            yield from parse_json(read_text(path))[key][name]
            return
        any_named = False
        for line in lines:
            if line == " }":
                break
            is_named = line == f"  {json.dumps(name)}: ["
            if not is_named and not _LIST.fullmatch(line):
                raise ValueError("a list of rows should begin here: " + line[:80])
            any_named |= is_named
            yield from _rows_until_end(lines, is_named)
        if [*lines] != ["}"]:
            raise ValueError("the file does not end where its rows do")
        if not any_named:
            raise KeyError(name)


def _rows_until_end(lines: Iterator[str], are_parsed: bool) -> Iterator[Any]:
    """The rows of a list whose first line was read, up to the line that ends it."""
    before = ""
    for line in filter(None, lines):
        is_end = line in ("  ]", "  ],")
        if before and before.endswith(",") == is_end:
            raise ValueError("a row or a comma is missing in a list of rows")
        if is_end:
            return
        if are_parsed:
            yield parse_json(line.removesuffix(","))
        before = line
    raise ValueError("a list of rows does not end")


def read_head(path: Path, key: str, kind: Format[Any]) -> Any:
    """The content above `key` in a file that `RowFile` wrote; the lists are not read. Any other JSON file is read whole.

    Raises as `kind.read`.
    """
    text, last = "", f" {json.dumps(key)}: {{"
    with kind.naming(path):
        with regular_file(path) as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8-sig"):
                if line.rstrip("\n") == last:
                    text = text.rstrip().removesuffix(",") + "}"
                    break
                text += line
                if len(text) > MOST_BYTES:
                    raise ValueError(f"larger than {MOST_BYTES:,} bytes")
        return parse_json(text)
