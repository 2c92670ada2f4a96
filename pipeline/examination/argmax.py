"""Which token a draft would choose at each place of given token ids, and by how much: one teacher-forced pass, and one of the
target for a draft that reads its hidden states. Shapes: N or n tokens of completions, P places of a block, V shared tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.drafts.loading import DraftWithWeights
from pipeline.errors import BrokenDraft
from pipeline.speculation.teacher_forced import PaddedBatch, TokenizedCompletion, batches


@dataclass(frozen=True)
class Choices:
    """The choices of a draft on N tokens: (N,) by token, or (N, P) where they depend on the start of the round; entry [s, j] is
    about token s + j, and one about no token of the completion means nothing."""

    is_argmax: NDArray[np.bool_]  # whether the token is its argmax, given all tokens before
    margin: NDArray[np.float64]  # between the logit of the token and the largest other one, at least 0
    largest: NDArray[np.float64]  # of the logits' absolute values


@torch.inference_mode()
def argmax_on(
    draft: DraftWithWeights, completions: Sequence[TokenizedCompletion], places: int, batch_tokens: int
) -> list[Choices]:
    """The choices of a draft on each completion, in rounds of `places` places. BrokenDraft for NaN logits."""
    choices = dict[int, Choices]()
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in completions], batch_tokens):
        batch = PaddedBatch([completions[number] for number in numbers])
        features = None if draft.states is None else draft.states.features(batch, draft.layers)
        shape = (len(batch.tokens_N), 1 if draft.kind.by_token else places)
        is_argmax, margin, largest = np.zeros(shape, bool), np.full(shape, np.inf), np.zeros(shape)
        for place, part, logits_nV, tokens_n in draft.logits_on(batch, places, features):
            chosen = _chosen(logits_nV, tokens_n)
            is_argmax[part, place], margin[part, place], largest[part, place] = chosen
        columns = [values[:, 0] if draft.kind.by_token else values for values in (is_argmax, margin, largest)]
        rows = zip(*map(batch.by_row, columns), strict=True)
        choices |= {number: Choices(*own) for number, own in zip(numbers, rows, strict=True)}
    return [choices[number] for number in range(len(completions))]


def _chosen(logits_nV: torch.Tensor, tokens_n: torch.Tensor) -> tuple[NDArray[Any], ...]:
    """The columns of `Choices`."""
    if bool(torch.isnan(logits_nV).any()):
        raise BrokenDraft("the draft returned NaN logits: its weights are damaged")
    tokens_n1 = tokens_n.unsqueeze(-1)
    own_n = logits_nV.gather(-1, tokens_n1).squeeze(-1)
    others_n = logits_nV.scatter(-1, tokens_n1, -torch.inf).amax(-1)
    is_argmax_n = logits_nV.argmax(-1) == tokens_n
    margin_n = (own_n.double() - others_n.double()).abs()
    largest_n = logits_nV.abs().where(logits_nV.isfinite(), 0).amax(-1).double()  # what it cannot draft has -inf
    return tuple(column.cpu().numpy() for column in (is_argmax_n, margin_n, largest_n))
