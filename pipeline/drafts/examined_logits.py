"""What a draft with logits at each start of a round says of the completion's tokens. Shapes as in `speculation/drafter.py`; N
tokens of the completions of a batch, H hidden size, n rows of a chunk."""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import BrokenDraft
from pipeline.models.devices import upload
from pipeline.speculation.drafter import Examined
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, chunk_rows


class _HasLogits(Protocol):
    vocabulary: int

    def logits(self, hidden_nH: torch.Tensor, place: int) -> torch.Tensor:
        """(n, V) of one place of the block."""


def values_of(
    draft: _HasLogits, batch: PaddedBatch, hidden_BSH: torch.Tensor, place: int, sampling: Sampling
) -> NDArray[Any]:
    """Of `Examined.values` the column of one place, for all tokens of the batch, (N,): hits of the argmax at temperature 0, else
    log q. `hidden_BSH`: what the logits of each start are computed from. BrokenDraft for logits that are NaN."""
    device = hidden_BSH.device
    hidden_NH = hidden_BSH[upload(batch.is_token_BS, device)]
    tokens_N = upload(batch.tokens_after(place), device)
    found_N = np.empty(len(tokens_N), dtype=bool if sampling.greedy else np.float64)
    step = chunk_rows(draft.vocabulary, device)
    for begin in range(0, len(tokens_N), step):
        part = slice(begin, begin + step)
        logits_nV, tokens_n = draft.logits(hidden_NH[part], place), tokens_N[part]
        if bool(torch.isnan(logits_nV).any()):
            raise BrokenDraft("the draft returned NaN logits: its weights are damaged")
        if sampling.greedy:
            found_N[part] = (logits_nV.max(-1).indices == tokens_n).cpu().numpy()  # the lowest id among ties
        else:
            log_q_nV = log_probabilities(logits_nV, sampling)
            found_N[part] = log_q_nV.gather(-1, tokens_n.unsqueeze(-1)).squeeze(-1).double().cpu().numpy()
    return found_N


def examined(batch: PaddedBatch, by_place: list[NDArray[Any]], gamma: int, sampling: Sampling) -> Examined:
    """The columns of all places; a block ends after the last of them. Nothing is drafted before the second token of a text: the
    target has no hidden state yet."""
    values_NP = np.stack(by_place, axis=1)
    if (lacking := gamma - values_NP.shape[1]) > 0:
        values_NP = np.pad(values_NP, ((0, 0), (0, lacking)), constant_values=False if sampling.greedy else -np.inf)
    values, drafted = batch.by_row(values_NP), [np.full(len(row.tokens), len(by_place)) for row in batch.rows]
    at_once = [number for number, row in enumerate(batch.rows) if len(row.prompt) < 2]
    for number in at_once:
        drafted[number][0], values[number][0] = 0, False if sampling.greedy else -np.inf
    return Examined(values, hits=sampling.greedy, drafted=drafted if lacking > 0 or at_once else None)
