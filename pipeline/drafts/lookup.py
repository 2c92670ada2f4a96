"""Prompt-lookup (Saxena 2023; vLLM: `ngram`): proposes what followed the latest earlier occurrence of the last tokens. No model.

The longest n-gram that the text ends with, of at most `ngram` tokens, is looked up in the text before it. Its continuation is the
block, which ends where the text does: it may be shorter than gamma, or empty. The text decides all, so q is 1 at each token.
Shapes as in `speculation/drafter.py`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.drafts.kinds import LOOKUP
from pipeline.drafts.text_drafter import TextDrafter
from pipeline.speculation.batch import Batch
from pipeline.speculation.drafter import DraftScores
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, TokenizedCompletion


class PromptLookup:
    """`drafter.LoadedDraft` without weights."""

    kind, layers, states, longest = LOOKUP, (), None, None
    models: Sequence[Any] = ()

    def __init__(self, ngram: int) -> None:
        """`ngram`: tokens of the longest n-gram that is looked up."""
        self.ngram = ngram

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> TextDrafter:
        return TextDrafter(batch, partial(_Index, self.ngram))

    def examine(
        self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None = None
    ) -> DraftScores:
        """Implements `LoadedDraft.examine`; the same at every temperature."""
        values, drafted = zip(*(self._examine(row, gamma) for row in batch.rows), strict=True)
        return DraftScores(values, hits=True, drafted=drafted)

    def _examine(self, row: TokenizedCompletion, gamma: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        text = np.concatenate([row.prompt, row.tokens]).tolist()
        before, known = len(row.prompt), np.array(text)
        index, places = _Index(self.ngram), np.full(len(row.tokens), -1)
        for end in range(1, len(text)):
            index.add(text, end)
            if end >= before:
                places[end - before] = index.find(text, end)
        starts_S = np.arange(before, len(text))
        drafted_S = np.where(places >= 0, np.minimum(starts_S - places, gamma), 0)
        places_P = np.arange(gamma)
        copied_SP = known[np.minimum(places[:, None] + places_P, len(text) - 1)]
        actual_SP = known[np.minimum(starts_S[:, None] + places_P, len(text) - 1)]
        return ((copied_SP == actual_SP) & (places_P < drafted_S[:, None])).astype(np.uint8), drafted_S


class _Index:
    """`text_drafter.TextReader`. Where the n-grams of a text end that have a token after them, the latest occurrence of each."""

    def __init__(self, longest: int) -> None:
        self._longest, self.end = longest, 0
        self._ends: dict[tuple[int, ...], int] = {}

    def block(self, text: Sequence[int], most: int) -> list[int]:
        for end in range(self.end + 1, len(text) + 1):
            self.add(text, end)
        start = self.find(text, len(text))
        return list(text[start : start + most]) if start >= 0 else []

    def add(self, text: Sequence[int], end: int) -> None:
        """The text is now `end` tokens long: the n-grams that end one token before have a continuation."""
        self.end = end
        for n in range(1, min(self._longest, end - 1) + 1):
            self._ends[tuple(text[end - 1 - n : end - 1])] = end - 1

    def find(self, text: Sequence[int], end: int) -> int:
        """The place where the continuation begins of the longest n-gram that ends at `end`; -1 if none occurred before."""
        for n in range(min(self._longest, end), 0, -1):
            if (place := self._ends.get(tuple(text[end - n : end]))) is not None:
                return place
        return -1
