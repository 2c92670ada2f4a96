"""Rows of text files: JSON lines, JSON arrays, CSV and TSV, plain text; also compressed. Reads in pieces: memory is bounded by
the longest row, not by the file. Does not depend on what a row means.

A row that cannot be parsed is yielded as a BadRow where the next one can be found; else the file is a UsageError.
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pipeline.corpus.json_values import MOST_LEVELS
from pipeline.corpus.rows import BadRow
from pipeline.corpus.signatures import LENGTH, check_start
from pipeline.corpus.sources import compression
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.store.json_text import NotJson, check_levels, parse_element, parse_json, regular_file

MAX_LINE_BYTES = 16 << 20  # the longest prompt with every character escaped, and the same again for other columns
_CHUNK = 1 << 20
_SPACES = re.compile(r"[ \t\r\n]*")
_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(r"sep=(.)\r?\n?")
_START = 64  # bytes by which UTF-16 is known
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Rows = Iterator[tuple[int, Any]]  # 1-based line or row number, and the value


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, decompressed. UsageError for a file that is not readable, also within the body."""
    packed = compression(path)
    try:
        with regular_file(path) as raw:  # no FIFO, which would block, and no device, which has no end
            check_start(path, raw.read(LENGTH), packed)
        with _open(path, packed) as raw, io.BufferedReader(raw, _CHUNK) as stream:
            if _is_utf16(stream.peek(_START)[:_START]):
                raise UsageError(f"{path}: UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        how = f" as {packed}" if packed else ""
        raise UsageError(f"{path}: not readable{how}: {printable(' '.join(str(error).split())[:200])}") from None


def _is_utf16(start: bytes) -> bool:
    """Whether it is UTF-16: by its mark, or by every second byte of Latin text, which is 0."""
    return start[:2] in _BOMS or (any(start) and max(start[0::2].count(0), start[1::2].count(0)) > len(start) // 3)


def _open(path: Path, packed: str | None) -> Any:
    """A stream that the caller buffers."""
    if packed == "zstd":
        import pyarrow as pa

        return pa.input_stream(str(path), compression="zstd")
    openers: dict[str | None, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    return openers[packed](path, "rb") if packed else path.open("rb", buffering=0)


def count_lines(path: Path) -> int:
    """Lines of a file, of which the last may have no newline."""
    with opened(path) as stream:
        lines, end = 0, b"\n"
        while chunk := stream.read(_CHUNK):
            lines, end = lines + chunk.count(b"\n"), chunk[-1:]
        return lines + (end != b"\n")


def read_jsonl(path: Path) -> Rows:
    """Line by line; blank lines are numbered and skipped."""
    for number, line in _lines(path):
        yield number, line if isinstance(line, BadRow) else _parse(line)


def read_text(path: Path) -> Rows:
    """A text a line; blank lines are numbered and skipped."""
    for number, line in _lines(path):
        try:
            yield number, line if isinstance(line, BadRow) else line.decode("utf-8")
        except UnicodeDecodeError as error:
            yield number, _not_unicode(error)


def _lines(path: Path) -> Iterator[tuple[int, bytes | BadRow]]:
    """Stripped, with at most MAX_LINE_BYTES of a line in memory."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE_BYTES)
                yield number, BadRow("line too long", f"more than {MAX_LINE_BYTES:,} bytes")
            elif stripped := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
                yield number, stripped


def _parse(line: bytes) -> Any:
    try:
        return parse_json(line.decode("utf-8"), foreign=True, levels=MOST_LEVELS)
    except UnicodeDecodeError as error:
        return _not_unicode(error)
    except ValueError as error:
        return BadRow("broken JSON", str(error))


def _within_levels(value: Any) -> Any:
    try:
        check_levels(value, most=MOST_LEVELS)
    except ValueError as error:
        return BadRow("broken JSON", str(error))
    return value


def _not_unicode(error: UnicodeDecodeError) -> BadRow:
    return BadRow("invalid unicode", f"not UTF-8 at byte {error.start + 1} (convert Latin-1 text to UTF-8)")


def is_array(path: Path) -> bool:
    """Whether a .json file is an array. If not, it is read line by line."""
    with opened(path) as stream:
        start = stream.peek(_CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
        return start.startswith(b"[")


def read_json(path: Path) -> Rows:
    """The elements of an array, or JSON lines."""
    if is_array(path):
        yield from _Array(path).rows()
        return
    yield from read_jsonl(path)


def first_values(path: Path, most: int) -> list[Any]:
    """The first JSON values of a text in which they follow each other with nothing but white space between them, as jq reads
    them; those within its first 16 MiB. None of a text with anything else between them."""
    with opened(path) as stream:
        text = stream.read(MAX_LINE_BYTES).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    values, place = list[Any](), 0
    while len(values) < most:
        spaces = _SPACES.match(text, place)
        place = spaces.end() if spaces else place
        try:
            value, place = parse_element(text, place)
        except ValueError:
            return (
                values if text[place : place + 1] in ("", "{", "[", '"') else []
            )  # a value that is cut off, or broken
        values.append(value)
    return values


class _Array:
    """The elements of a JSON array, with one of them in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text, self._place, self._ended = "", 0, False

    def rows(self) -> Rows:
        number = 0
        # What is not UTF-8 becomes lone surrogates, which are refused in the row's own texts.
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        with opened(self._path) as stream:
            self._more(stream, decoder, _CHUNK)
            self._text = self._text.removeprefix("\ufeff")
            while (mark := self._next(stream, decoder)) not in ("]", ""):
                if mark != ("," if number else "["):
                    raise self._broken(number, f"'{mark}' where a comma belongs")
                self._place += 1
                if self._next(stream, decoder) == "]" and not number:
                    break
                number += 1
                yield number, self._element(stream, decoder, number)
            if not self._text.startswith("]", self._place):
                raise self._broken(number, "the file ends within the array")
            self._place += 1
            if self._next(stream, decoder):
                raise self._broken(number, "text after the end of the array")

    def _element(self, stream: IO[bytes], decoder: Any, number: int) -> Any:
        size = _CHUNK
        while True:
            try:
                value, end = parse_element(self._text, self._place)
            except NotJson as error:
                if self._ended or len(self._text) - self._place > MAX_LINE_BYTES:
                    raise self._broken(number, str(error)) from None
            except ValueError as error:
                raise self._broken(number, str(error)) from None
            else:
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._place = end
                    return _within_levels(value)
            self._more(stream, decoder, size)
            size *= 2

    def _next(self, stream: IO[bytes], decoder: Any) -> str:
        """The next character that is no white space, which is not taken; "" at the end."""
        while True:
            spaces = _SPACES.match(self._text, self._place)
            self._place = spaces.end() if spaces else self._place
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]
            self._more(stream, decoder, _CHUNK)

    def _more(self, stream: IO[bytes], decoder: Any, size: int) -> None:
        chunk = stream.read(size)
        self._ended = not chunk
        self._text = self._text[self._place :] + decoder.decode(chunk, self._ended)
        self._place = 0

    def _broken(self, number: int, why: str) -> UsageError:
        return UsageError(
            f"{self._path}: row {max(number, 1):,}: not a JSON array of rows of at most {MAX_LINE_BYTES:,} characters: {why}; "
            "in JSON lines a broken row costs only itself"
        )


def read_table(path: Path, delimiter: str | None) -> Rows:
    """Rows of a CSV or TSV file as dicts of text by the names in its first line; an empty cell is None. The numbers are those of
    the lines on which rows begin. `delimiter` None: that of `,`, `;`, tab and `|` which the first line has most often.

    UsageError for a header with a name twice, and for a quote that is never closed, because rows are lost in it.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    with opened(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
        try:
            yield from _table(path, text, delimiter)
        finally:
            text.detach()


def _table(path: Path, text: io.TextIOWrapper, delimiter: str | None) -> Rows:
    lines = _Lines(path, text)
    first = next(lines, "")
    if stated := _SEPARATOR.fullmatch(first):  # Excel's own line
        delimiter, first = stated.group(1), next(lines, "")
    lines.again(first)
    delimiter = delimiter or max(_DELIMITERS, key=first.count)
    spaced = 0 < first.count(delimiter) == first.count(f"{delimiter} ")  # a space after each belongs to no cell
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=spaced, strict=True)
    header: list[str] | None = None
    while True:
        number = reader.line_num + (2 if stated else 1)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "unexpected end" in str(error) or "field limit" in str(error):
                raise UsageError(f"{path}: line {number:,}: a quote that begins a cell here is never closed") from None
            if header is None:
                raise UsageError(f"{path}: line {number:,}: not a header: {error}") from None
            yield number, BadRow("broken CSV", str(error))
            continue
        if cells is None:
            return
        if not cells:  # a blank line
            continue
        if header is None:
            header = _header(path, cells)
        elif len(cells) != len(header):
            yield number, BadRow("broken CSV", f"{len(cells):,} cells, and the header has {len(header):,}")
        else:
            yield number, {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for name, times in Counter(names).items() if name and times > 1]  # spreadsheets write empty names
    if twice:
        raise UsageError(
            f"{path}: line 1, the header: the column '{printable(twice[0][:40])}' is there twice; rename one of them"
        )
    return names


class _Lines:
    """Lines for the csv module, none longer than MAX_LINE_BYTES."""

    def __init__(self, path: Path, text: io.TextIOWrapper) -> None:
        self._path, self._text, self._back = path, text, ""

    def again(self, line: str) -> None:
        self._back = line

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line, self._back = self._back or self._text.readline(MAX_LINE_BYTES + 1), ""
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"{self._path}: a line has more than {MAX_LINE_BYTES:,} characters")
        if not line:
            raise StopIteration
        return line
