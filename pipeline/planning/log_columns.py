"""Which columns of a file of prompts are those of a deployment's log: recorded answers, and times."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answers import UnusableAnswer, parse_answer
from pipeline.corpus.traffic import timestamp

_ANSWERS = ("answer", "response", "completion", "output")
_TIMES = ("created", "created_at", "timestamp", "time", "date")


@dataclass
class LogColumns:
    """Rows with a recorded answer and with a time, by column. The column "" stands for the last of a row's messages."""

    answers: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        self.answers.update(column for column in (*_ANSWERS, "") if _has_answer(row, column))
        self.times.update(column for column in _TIMES if timestamp(row.get(column)) is not None)

    def lines(self) -> Iterator[str]:
        """The keys of a source that use them, as comments or off, because they change what is examined."""
        if self.times:
            column, rows = self.times.most_common(1)[0]
            named = "" if column == PromptSource.model_fields["time_field"].default else f", by time_field: {column}"
            yield f"      # since: 14d  # only rows of the last 14 days{named}; {rows:,} rows have a time"
        if self.answers:
            column, rows = self.answers.most_common(1)[0]
            yield f"      use_answers: false  # {rows:,} rows have a recorded answer; true: the servers only score it"
            if column:
                yield f"      answer_field: {column}"
        if self.times or self.answers:
            yield "      redact: false  # true: replace keys, e-mail addresses and long numbers before anything is stored"


def _has_answer(row: Mapping[str, Any], column: str) -> bool:
    if column and row.get(column) is None:
        return False
    try:
        parse_answer(row, PromptSource(path="log", answer_field=column))
    except UnusableAnswer:
        return False
    return True
