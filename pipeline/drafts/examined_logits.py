"""What a draft with logits at each start of a round states of the completion's tokens. Shapes as in `speculation/drafter.py`; N
tokens of the completions of a batch, H hidden size, n rows of a chunk."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pipeline.errors import BrokenDraft
from pipeline.models.devices import upload
from pipeline.speculation.drafter import DraftScores
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, chunk_rows


class _HasLogits(Protocol):
    vocabulary: int

    def logits(self, hidden_nH: torch.Tensor, place: int) -> torch.Tensor:
        """(n, V) of one place of the block."""


class Logits(NamedTuple):
    """The logits of one place of the block, for rounds that start at the tokens `part` of the batch: (n, V), and (n,) the
    tokens there."""

    place: int
    part: slice
    logits_nV: torch.Tensor
    tokens_n: torch.Tensor


def logits_by_place(draft: _HasLogits, batch: PaddedBatch, hidden_PBSH: Iterable[torch.Tensor]) -> Iterator[Logits]:
    """Yields logits by place and chunk. `hidden_PBSH`: by place, what the logits of each start are computed from. BrokenDraft
    for logits that are NaN."""
    for place, hidden_BSH in enumerate(hidden_PBSH):
        device = hidden_BSH.device
        hidden_NH = hidden_BSH[upload(batch.is_token_BS, device)]
        tokens_N = upload(batch.tokens_after(place), device)
        step = chunk_rows(draft.vocabulary, device)
        for begin in range(0, len(tokens_N), step):
            part = slice(begin, begin + step)
            logits_nV = draft.logits(hidden_NH[part], place)
            if bool(torch.isnan(logits_nV).any()):
                raise BrokenDraft("the draft returned NaN logits: its weights are damaged")
            yield Logits(place, part, logits_nV, tokens_N[part])


def examined(
    batch: PaddedBatch, by_place: Iterable[Logits], places: int, gamma: int, sampling: Sampling
) -> DraftScores:
    """Hits of the argmax at temperature 0, else log q, at all places; a block ends after `places` of them. Nothing is drafted
    before the second token of a text: the target has no hidden state yet."""
    nothing: Any = False if sampling.greedy else -np.inf
    values_NP = np.full((len(batch.tokens_N), gamma), nothing)
    for place, part, logits_nV, tokens_n in by_place:
        if sampling.greedy:
            found_n = logits_nV.max(-1).indices == tokens_n  # the lowest id among ties
        else:
            found_n = log_probabilities(logits_nV, sampling).gather(-1, tokens_n.unsqueeze(-1)).squeeze(-1).double()
        values_NP[part, place] = found_n.cpu().numpy()
    lacking = gamma - places
    values, drafted = batch.by_row(values_NP), [np.full(len(row.tokens), places) for row in batch.rows]
    at_once = [number for number, row in enumerate(batch.rows) if len(row.prompt) < 2]
    for number in at_once:
        drafted[number][0], values[number][0] = 0, nothing
    return DraftScores(values, hits=sampling.greedy, drafted=drafted if lacking > 0 or at_once else None)
