"""Suffix matching (Oliaro et al. 2024, within a request): proposes what followed the longest suffix most often. No model.

The longest suffix of the text that occurred before is looked up, of at most `longest_match` tokens. Its earlier occurrences are
the matches, and the block is what followed them most often: token by token, each counted over the matches that agree with the
block so far; the latest if several are as frequent. The block ends after `max_spec_factor` tokens for each token of the suffix,
where no match has a next token, and before a token whose estimated probability, the share of all matches that agree with the
block up to it, is below `min_token_prob`. A smaller gamma cuts the same block, so q does not depend on gamma. The text decides
all, so q is 1 at each token. Shapes as in `speculation/drafter.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.drafts.kinds import SUFFIX
from pipeline.drafts.text_drafter import TextDrafter
from pipeline.speculation.batch import Batch
from pipeline.speculation.drafter import DraftScores
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, TokenizedCompletion


@dataclass(frozen=True, kw_only=True)
class SuffixSettings:
    """The defaults of `max_spec_factor` and `min_token_prob` are those of vLLM's `suffix`."""

    longest_match: int = 32
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


class SuffixMatching:
    """`drafter.LoadedDraft` without weights."""

    kind, layers, states, longest = SUFFIX, (), None, None
    models: Sequence[Any] = ()

    def __init__(self, settings: SuffixSettings) -> None:
        self.settings = settings

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> TextDrafter:
        return TextDrafter(batch, partial(_Matches, self.settings))

    def examine(
        self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None = None
    ) -> DraftScores:
        """Implements `LoadedDraft.examine`; the same at every temperature."""
        values, drafted = zip(*(self._examine(row, gamma) for row in batch.rows), strict=True)
        return DraftScores(values, hits=True, drafted=drafted)

    def _examine(self, row: TokenizedCompletion, gamma: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        text, before = np.concatenate([row.prompt, row.tokens]).tolist(), len(row.prompt)
        hits_SP = np.zeros((len(row.tokens), gamma), np.uint8)
        drafted_S, matches = np.zeros(len(row.tokens), np.int64), _Matches(self.settings)
        for start in range(len(row.tokens)):
            end = before + start
            block = matches.block(text[:end], gamma)
            drafted_S[start] = len(block)
            hits_SP[start, : len(block)] = [
                place < len(text) and text[place] == token for place, token in enumerate(block, end)
            ]
        return hits_SP, drafted_S


class _Matches:
    """`text_drafter.TextReader`. Keeps for each place of the text how many tokens before it are those at the end of the text."""

    def __init__(self, settings: SuffixSettings) -> None:
        self._settings = settings
        self._text, self._same = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def block(self, text: Sequence[int], most: int) -> list[int]:
        self._read(text)
        longest = int(self._same.max(initial=0))
        places = np.flatnonzero(self._same == longest)
        block, matches = list[int](), len(places)
        for _ in range(min(most, int(self._settings.max_spec_factor * longest))):
            places = places[places < len(self._text)]
            if not len(places):
                break
            followed = self._text[places]
            token, count = followed[-1].item(), len(places)
            if (followed != token).any():  # in a loop of the text all are equal, and counting takes most of the time
                # From the latest match on, so that of equal counts the latest comes first.
                ((token, count),) = Counter(followed[::-1].tolist()).most_common(1)
            if count / matches < self._settings.min_token_prob:
                break
            block.append(token)
            places = places[followed == token] + 1
        return block

    def _read(self, text: Sequence[int]) -> None:
        """Token by token; of many new tokens the last ones alone, which are all that a match can hold."""
        seen, most = len(self._text), self._settings.longest_match
        self._text = np.concatenate([self._text, np.array(text[seen:], np.int64)])
        if len(text) - most > seen:
            seen, self._same = len(text) - most, np.zeros(len(text) - most, np.int64)
        for last in range(seen, len(text)):
            longer = np.minimum(self._same + 1, most) * (self._text[:last] == self._text[last])
            self._same = np.concatenate([[0], longer])
