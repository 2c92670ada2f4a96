"""Rows of a prompt source, one at a time: of its files in their format, with the columns that were recognised.

Handles files and row numbers, not prompts. A row that cannot be parsed is yielded as a `BadRow`; a file that cannot be read
raises UsageError.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.config.corpus import PromptSource, SourceFormat
from pipeline.corpus import tables, text_files
from pipeline.corpus.advice import program_for
from pipeline.corpus.chats import is_chat, is_spelled_texts
from pipeline.corpus.columns import SAMPLE, SourceColumns, Where, find_columns, hint, holds_prompts, mostly_lists
from pipeline.corpus.logged_requests import request_column, with_request
from pipeline.corpus.named_columns import NamedColumns
from pipeline.corpus.rows import LIST_AS_TEXT, SPELLED, BadRow, prompt_columns
from pipeline.corpus.sources import TITLES, SourceFiles, compression, find_files, jq_command
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.store.own_files import reads_own_files

_SHOWN = 12  # columns in a message
_BY_LINE: tuple[SourceFormat, ...] = ("jsonl", "csv", "tsv", "text")


@dataclass(frozen=True)
class SourceRow:
    """One row: the file's name, its 1-based line or row number, and the parsed value or a BadRow."""

    file: str
    number: int
    value: Any
    redacted: bool = False  # something in it has been replaced


class SourceReader:
    """The rows of one prompt source. `option`: the command's option that names it, for messages; None: the config does. `since`:
    seconds since 1970, from which rows with a time are wanted. `also`: columns to read of columnar files beside those in use.

    UsageError if there is no file, if its format or columns are not known, or if it cannot be read; every message names the file.
    """

    def __init__(
        self,
        number: int,
        source: PromptSource,
        path: Path,
        option: str | None = None,
        since: float | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self._also = also
        self.path = path / "prompts.jsonl" if source.is_reference else path
        key = f"corpus.sources.{number}"
        self._found = find_files(self.path, source.format, f"{option or key + '.path:'} {self.path}")
        first = self._found.files[0]
        self._is_array = self._found.format == "json" and text_files.is_array(first)
        self.over_limit = 0  # rows that `limit` leaves out; known after `total`
        self._whole: str | None = None  # the column of rows that are no objects
        self._request: str | None = None  # the column of the requests, where they have one of their own
        self.unknown = Counter[str]()  # fields of requests that nothing is known of, by the rows of the last reading
        self._named = NamedColumns(source)
        self.columns = self._columns(source, _remedy(key, option), option)
        self.source = self.columns.source
        self.since = since if self.columns.has_times else None
        if source.use_answers and self.columns.foreign_answers:
            raise UsageError(
                f"{self.path}: read as {self.columns.layout}; {key}.use_answers: {self.columns.foreign_answers} of such files "
                "come from other models or people. Set it to false; or, if the file is a log of your deployment, name the "
                "columns (messages_field, or prompt_field and answer_field)"
            )

    @property
    def files(self) -> SourceFiles:
        return self._found

    @property
    def unit(self) -> str:
        """The unit of row numbers in messages: "line" or "row"."""
        return (
            "line" if self._found.format in _BY_LINE or (self._found.format == "json" and not self._is_array) else "row"
        )

    @property
    def is_log(self) -> bool:
        """Whether rows are requests of a deployment, whose labels clients give."""
        source = self.source
        return source.domain is None and (
            source.use_answers
            or source.needs_time
            or self.since is not None
            or self._request is not None
            or (self.columns.has_times and self.columns.has_requests)
        )

    @property
    def layout(self) -> str:
        """What files and columns were recognised as, for people: one line."""
        title = "a JSON array" if self._is_array else TITLES[self._found.format]
        packed = compression(self._found.files[0])
        files = f"{len(self._found.files):,} files of " if len(self._found.files) > 1 else ""
        columns = f", {self.columns.layout}" if self.columns.layout else ""
        columns = f", requests in `{printable(self._request)}`{columns}" if self._request else columns
        return f"{files}{title}{f' ({packed})' if packed else ''}{columns}"

    @property
    def summary(self) -> str:
        """The layout, with what is not used."""
        unused = printable(", ".join(name[:40] for name in self.columns.unused[:_SHOWN]))
        more = ", ..." if len(self.columns.unused) > _SHOWN else ""
        keys = hint(self.columns)
        return (
            f"read as {self.layout}"
            + (f"; columns not used: {unused}{more}" if unused else "")
            + (f" ({keys})" if keys else "")
        )

    @property
    def line(self) -> str:
        """`summary`, with the path, as commands print it."""
        return f"corpus: {printable(str(self.path))}: {self.summary}"

    @property
    def missing(self) -> dict[str, str]:
        """The columns that the source names and none of the rows read so far has, in words, by its key."""
        return self._named.missing(self.columns.unused)

    def require_named(self) -> None:
        """UsageError for an option that names a column which none of the rows read so far has."""
        for key, text in self.missing.items():
            raise UsageError(f"--{key.replace('_', '-')}: {self.path}: {text}")

    def total(self) -> int:
        """Number of rows for the progress bar. Blank lines count too."""
        rows = sum(self._count(file) for file in self._found.files)
        read = min(rows, self.source.limit) if self.source.limit else rows
        self.over_limit = rows - read
        return read

    def __iter__(self) -> Iterator[SourceRow]:
        """Yields at most `limit` rows, in file order."""
        left = self.source.limit
        self.unknown.clear()
        for file in self._found.files:
            name = self._found.name(file)
            for number, value in self._requests(self._read(file, self._wanted())):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield SourceRow(name, number, value)

    def _requests(self, rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Rows with the fields of their requests; also of those that come after the first rows, as logs change their form."""
        column, prompts = self._request or self.source.request_field, prompt_columns(self.source)
        for number, value in rows:
            self._named.see(value)
            value = with_request(value, prompts, column, self.unknown)
            self._named.see(value)
            yield number, self._as_written(value) if self.columns.lists_as_text else value

    def _as_written(self, row: Any) -> Any:
        """A row of a column whose lists are written as text; a BadRow for such a list."""
        name = self.source.prompt_field
        if name == self.source.turns_field or not isinstance(row, Mapping) or not is_spelled_texts(row.get(name)):
            return row
        return BadRow(SPELLED, f"'{name}' {LIST_AS_TEXT}")

    def _wanted(self) -> list[str]:
        """Columns to read of columnar files, those of prompts first."""
        return list(dict.fromkeys([*([self._request] if self._request else []), *self.columns.read, *self._also]))

    def _columns(self, source: PromptSource, remedy: str, option: str | None) -> SourceColumns:
        """The columns by the first rows of the first file that has some. Rows may be texts or chats instead of objects, then
        all are."""
        samples = ((file, list(islice(self._read(file, None), SAMPLE))) for file in self._found.files)
        first, sample = next((file_sample for file_sample in samples if file_sample[1]), (self._found.files[0], []))
        values = [value for _, value in sample if not isinstance(value, BadRow)]
        is_json = self._found.format in ("jsonl", "json")
        where = Where(str(first), self.unit, 1, remedy, self._has_header, is_json)
        if is_json and sample and not self._is_array:
            _check_lines(first, sample, values, source, option, where)
        self._request = request_column(values, prompt_columns(source), source.request_field)
        values = [with_request(value, prompt_columns(source), self._request) for value in values]
        source = source.model_copy(update={"request_field": self._request or source.request_field})
        if values and all(isinstance(value, str) for value in values):
            self._whole = source.prompt_field
            layout = "" if self._found.format == "text" else "a text each"
            return SourceColumns(source, layout, (), lists_as_text=mostly_lists(values))
        if values and all(isinstance(value, list) for value in values):
            self._whole = source.messages_field
            return SourceColumns(source, "a chat each", ())
        numbers = (number for number, value in sample if isinstance(value, Mapping))
        number = 1 if self._has_header else next(numbers, 1)
        rows = [value for value in values if isinstance(value, Mapping)]
        return find_columns(rows, source, dataclasses.replace(where, number=number))

    @property
    def _has_header(self) -> bool:
        return self._found.format in ("csv", "tsv")

    def _count(self, file: Path) -> int:
        if self._found.format == "parquet":
            return tables.count_parquet(file)
        if self._found.format == "dataset":
            return tables.count_dataset(file)
        if self._found.format in ("jsonl", "text"):
            return text_files.count_lines(file)
        return sum(1 for _ in self._read(file, None))

    @reads_own_files("calls readers of text_files.py and tables.py, which are tried one by one")
    def _read(self, file: Path, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
        """The rows of a file; of columnar files `columns` only, all of them if None."""
        match self._found.format:
            case "parquet":
                return tables.read_parquet(file, columns)
            case "dataset":
                return tables.read_dataset(file, columns)
            case "json":
                rows = text_files.read_json(file)
            case "csv":
                return text_files.read_table(file, None)
            case "tsv":
                return text_files.read_table(file, "\t")
            case "text":
                rows = text_files.read_text(file)
            case "jsonl":
                rows = text_files.read_jsonl(file)
            case unknown:
                raise AssertionError(f"no reader of {unknown}")
        return rows if self._whole is None else self._as_objects(rows, self._whole)

    def _as_objects(self, rows: Iterator[tuple[int, Any]], column: str) -> Iterator[tuple[int, Any]]:
        kind = str if column == self.source.prompt_field else list
        for number, value in rows:
            yield number, {column: value} if isinstance(value, kind) else value


def _check_lines(
    file: Path, sample: list[tuple[int, Any]], values: list[Any], source: PromptSource, option: str | None, where: Where
) -> None:
    """UsageError for a file of JSON lines whose first lines are not rows: an array on one line, or rows of several lines."""
    number, first = sample[0]
    lists = [value for value in values if isinstance(value, list) and value and isinstance(value[0], Mapping)]
    if values and len(lists) == len(values) and not any(map(is_chat, values)):
        raise UsageError(
            f"{file}: line {number}: a list of objects that are no messages; for an array of rows "
            f"{'give --prompt-format json' if option else 'set `format: json` of the source'}"
        )
    broken = sum(isinstance(value, BadRow) and value.kind == "broken JSON" for _, value in sample)
    if isinstance(first, BadRow) and len(sample) < 2 * broken:  # the last element of a list may be alone on its line
        following = text_files.first_values(file, SAMPLE)
        if len(sample) == 1 and len(following) < 2:  # a bad row like others
            return
        program = program_for(following, lambda rows: holds_prompts(rows, source, where), as_they_are=True)
        command = f", for example with {jq_command(str(file), printable(program)[:80])}" if program else ""
        raise UsageError(
            f"{file}: line {number}: {first}; most of the first lines are no JSON by themselves; write each row on "
            f"one line{command}"
        )


def _remedy(key: str, option: str | None) -> str:
    if option is not None:
        return "name the column with --prompt-field or --messages-field"
    return f"set prompt_field or messages_field of {key} to the column's name"
