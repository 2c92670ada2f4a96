"""The rows that the first pass accepts, and what may take them in the place of the row buffer."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pipeline.corpus.answer_store import StoredAnswer
from pipeline.corpus.rows import ParsedPrompt


class AcceptedRow(NamedTuple):
    """A prompt of a source (its number). `tokens`: its ids for the target; `bare`: those that near-duplicates are found by;
    `answer`: the recorded one, where it is used."""

    source: int
    prompt: ParsedPrompt
    tokens: list[int]
    bare: list[int]
    answer: StoredAnswer | None


class Rows(Protocol):
    """Takes accepted rows, as `RowBuffer` does."""

    def add(self, rows: Sequence[AcceptedRow]) -> None: ...


class CountedTokens:
    """Counts the tokens of each row, and how often all rows have each token."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.tokens = Counter[int]()

    def add(self, rows: Sequence[AcceptedRow]) -> None:
        for row in rows:
            self.lengths.append(len(row.tokens))
            self.tokens.update(row.tokens)
