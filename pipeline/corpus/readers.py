"""Rows of a prompt source, one at a time, from JSONL, Parquet or `datasets` directories.

Knows files and row numbers, not prompts. A row that cannot be parsed is yielded as a `BadRow`; a file that cannot be read
raises UsageError.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus import tables
from pipeline.corpus.answers import ANSWER_COLUMNS
from pipeline.corpus.rows import BadRow
from pipeline.errors import UsageError

MAX_LINE_BYTES = 16 << 20  # the longest prompt with every character escaped, and the same again for other columns
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}  # by file extension
_DATASET_MARKS = ("state.json", "dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Row:
    """One row: the file's name, its 1-based line or row number, and the parsed value or a BadRow."""

    file: str
    number: int
    value: Any
    redacted: bool = False  # something in it has been replaced


class SourceReader:
    """The files of one prompt source.

    UsageError if the format cannot be detected or there is no file; every message names the file.
    """

    def __init__(self, number: int, source: PromptSource, path: Path) -> None:
        self._source = source
        self.path = path / "prompts.jsonl" if source.is_reference else path
        self._kind = _detect_format(number, source, self.path)
        if self._kind == "parquet" and self.path.is_dir():
            self._files = sorted(self.path.rglob("*.parquet"))
        else:
            self._files = [self.path]

    @property
    def unit(self) -> str:
        """The unit of row numbers in messages: "line" or "row"."""
        return "line" if self._kind == "jsonl" else "row"

    def total(self) -> int:
        """Number of rows for the progress bar. For JSONL the number of newlines, so blank lines count too."""
        count = {"jsonl": _count_lines, "parquet": tables.count_parquet, "dataset": tables.count_dataset}[self._kind]
        rows = sum(count(file) for file in self._files)
        return min(rows, self._source.limit) if self._source.limit else rows

    def __iter__(self) -> Iterator[Row]:
        """At most `limit` rows, in file order."""
        read = {"jsonl": _read_jsonl, "parquet": tables.read_parquet, "dataset": tables.read_dataset}[self._kind]
        left = self._source.limit
        for file in self._files:
            name = file.relative_to(self.path).as_posix() if file != self.path else file.name
            for number, value in read(file, _columns(self._source)):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield Row(name, number, value)


def _columns(source: PromptSource) -> list[str]:
    names = (source.prompt_field, source.messages_field, source.turns_field, source.domain_field, source.group_field)
    further = [source.tools_field, source.time_field if source.needs_time else None]
    if source.use_answers:
        further += [source.answer_field, *ANSWER_COLUMNS]
    return list(dict.fromkeys([*names, *(name for name in further if name)]))


def _detect_format(number: int, source: PromptSource, path: Path) -> str:
    if not path.exists():
        raise UsageError(f"corpus.sources.{number}.path: {path}: no such file or directory")
    if source.format == "parquet" and path.is_dir() and not any(path.rglob("*.parquet")):
        raise UsageError(f"corpus.sources.{number}.path: {path}: no .parquet files in this directory")
    if (source.format == "jsonl" and path.is_dir()) or (source.format == "dataset" and not path.is_dir()):
        raise UsageError(
            f"corpus.sources.{number}.format = {source.format}: {path} is "
            f"{'a directory' if path.is_dir() else 'a file'}"
        )
    if source.format == "dataset" or (source.format == "auto" and path.is_dir()):
        saved = any((path / mark).is_file() for mark in _DATASET_MARKS)
        if not saved and not any(path.rglob("*.parquet")):
            raise UsageError(
                f"corpus.sources.{number}.path: {path}: not a directory written by save_to_disk, and "
                "it contains no .parquet files"
            )
        return "dataset" if saved else "parquet"
    if source.format != "auto":
        return source.format
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(
            f"corpus.sources.{number}.format = auto: unknown file extension of {path}; set format to jsonl or parquet"
        )
    return _FORMATS[path.suffix.lower()]


def require_prompts(path: Path) -> None:
    """UsageError unless `path`, the value of an option `--prompts`, can be the file or directory of a prompt source."""
    if not path.exists():
        raise UsageError(f"--prompts {path}: no such file or directory")
    if path.is_file() and path.suffix.lower() not in _FORMATS:
        raise UsageError(f"--prompts {path}: give a .jsonl or .parquet file, or a `datasets` directory")


def _count_lines(path: Path) -> int:
    with path.open("rb") as stream:
        lines = 0
        while chunk := stream.read(1 << 20):
            lines += chunk.count(b"\n")
        return lines


def _read_jsonl(path: Path, columns: list[str]) -> Iterator[tuple[int, Any]]:
    """Line by line, with at most MAX_LINE_BYTES of a line in memory; blank lines are numbered and skipped."""
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE_BYTES)
                yield number, BadRow("line too long", f"more than {MAX_LINE_BYTES:,} bytes")
            elif stripped := line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                yield number, _parse(stripped)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow("invalid unicode", f"not UTF-8 at byte {error.start + 1} (convert Latin-1 text to UTF-8)")
    except json.JSONDecodeError as error:
        return BadRow("broken JSON", f"{error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError):
        return BadRow("broken JSON", "a number too long or brackets too deep")
