"""What the rows of a log counted of speculation, by domain. Pure, and never an error.

The columns are those of the source of prompts that reads the same log; a corpus and the watch then name the same domains.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.logged_requests import request_column, with_request
from pipeline.corpus.request_counts import has_impossible_counts, request_counts
from pipeline.corpus.rows import BadRow, prompt_columns, row_domain
from pipeline.engines.counts import Counts

_MOST_DOMAINS = 256
_OTHERS = "other domains"
_CONTAINER = {"log", "stream"}  # keys of Docker's json-file driver, and of Fluent Bit

_Kind = tuple[str, ...]  # the counts that a row has


def source_of(log: Path, sources: Sequence[PromptSource]) -> PromptSource:
    """The source of prompts that states which columns the rows of `log` have: the one that reads these files, else the only one
    that uses recorded answers (the log of before, archived), else the default columns."""
    reading = [source for source in sources if _reads(source.path, log)]
    candidates = reading or [source for source in sources if source.use_answers]
    return candidates[0] if len(candidates) == 1 or reading else PromptSource(path="log")


def _reads(path: str, log: Path) -> bool:
    """Whether a file, a directory or a glob of prompts is of the files of a log, or the reverse."""
    files, name = Path(path).resolve(), str(log.resolve())
    return files.is_relative_to(name) or Path(name).is_relative_to(files) or fnmatch.fnmatchcase(name, str(files))


class LogCounts:
    """Adds up rows. `by_request`: what makes the engine state the counts of a request, for the message. `source`: the columns."""

    def __init__(self, by_request: str, source: PromptSource | None = None) -> None:
        self._by_request = by_request
        self._source = source or PromptSource(path="log")
        self._prompts = prompt_columns(self._source)
        self._sums: dict[_Kind, dict[str, Counts]] = {}
        self._rows: dict[_Kind, int] = {}
        self._domains: set[str] = set()
        self._all = self._impossible = self._wrapped = 0

    def take(self, row: Any) -> None:
        """Add one row. Rows without counts are passed over."""
        self._all += 1
        counts = request_counts(row, self._source.answer_field)
        if counts is None:
            self._impossible += has_impossible_counts(row, self._source.answer_field)
            self._wrapped += isinstance(row, Mapping) and _CONTAINER <= row.keys()
            return
        kind = tuple(field.name for field in fields(counts) if getattr(counts, field.name) is not None)
        domain, sums = self._domain(row), self._sums.setdefault(kind, {})
        sums[domain] = sums[domain] + counts if domain in sums else counts
        self._rows[kind] = self._rows.get(kind, 0) + 1

    def by_domain(self) -> Mapping[str, Counts]:
        """The counts of most rows. A sum over rows of which some lack a count would lack it too."""
        return self._sums[self._kind] if self._rows else {}

    def problems(self) -> list[str]:
        """The problems of the rows, a line each."""
        problems = []
        if self._impossible:
            problems.append(f"{self._impossible:,} of {self._all:,} rows have impossible counts of draft tokens")
        if self._rows and (others := sum(self._rows.values()) - self._rows[self._kind]):
            problems.append(f"{others:,} of {self._all:,} rows have other counts than most, and are left out")
        if self._wrapped and not self._rows:
            problems.append(
                f"{self._wrapped:,} of {self._all:,} rows are what a container printed (`log`, `stream`): name the file that the "
                "logger itself writes (docs/logs.md)"
            )
        elif self._all and not self._rows:
            problems.append(
                f"none of {self._all:,} rows has the counts of its request ({self._by_request or 'not known'})"
            )
        return problems

    @property
    def _kind(self) -> _Kind:
        return max(self._rows, key=lambda kind: self._rows[kind])

    def _domain(self, row: Mapping[str, Any]) -> str:
        try:
            column = request_column([row], self._prompts, self._source.request_field)
            domain = row_domain(with_request(row, self._prompts, column), self._source)
        except BadRow:
            return _OTHERS
        if len(self._domains) < _MOST_DOMAINS:
            self._domains.add(domain)
        return domain if domain in self._domains else _OTHERS
