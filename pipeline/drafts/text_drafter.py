"""The drafter of a draft without a model that copies from the text: it follows the text of each row and asks a reader for blocks.

The text decides all, so q is 1 at each token. Shapes as in `speculation/drafter.py`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pipeline.models.devices import upload
from pipeline.speculation.batch import Batch
from pipeline.speculation.drafter import GoOn, Proposal
from pipeline.speculation.hidden_states import Features


class TextReader(Protocol):
    """Follows one text."""

    def block(self, text: Sequence[int], most: int) -> list[int]:
        """A block of at most `most` tokens that may follow. `text` begins with the text of the last call."""


class TextDrafter:
    """`drafter.Drafter` with a reader for each row."""

    def __init__(self, batch: Batch, reader: Callable[[], TextReader]) -> None:
        self._batch = batch
        self._texts = [list(request.prompt) for request in batch.requests]
        self._readers = [reader() for _ in self._texts]

    def start(self, features: Features | None) -> None:
        return None

    def propose(self, count: int, uniform_BN: torch.Tensor, go_on: GoOn) -> Proposal:
        rows = zip(self._readers, self._texts, self._batch.room(), strict=True)
        blocks = [reader.block(text, min(count, room)) if room else [] for reader, text, room in rows]
        made = max(map(len, blocks))
        padded = [block + [0] * (made - len(block)) for block in blocks]
        tokens_BG = upload(torch.tensor(padded, dtype=torch.long), self._batch.ids_BS.device)
        return Proposal(tokens_BG, [None] * made, list(map(len, blocks)), torch.ones_like(tokens_BG))

    def commit(self, accepted: Sequence[int], made: int, features: Features | None) -> None:
        for text, number in zip(self._texts, self._batch.running, strict=True):
            emitted = len(text) - len(self._batch.requests[number].prompt)
            text.extend(self._batch.completions[number].tokens[emitted:])

    def select(self, rows: Sequence[int]) -> None:
        self._texts = [self._texts[row] for row in rows]
        self._readers = [self._readers[row] for row in rows]
