"""Which token a model would choose at each place of given token ids, and by how much: one teacher-forced pass. Shapes: N or n
tokens of completions, V shared tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.explained_counts import Drafted
from pipeline.errors import BrokenDraft
from pipeline.speculation.teacher_forced import PaddedBatch, TeacherForced, TokenizedCompletion, batches


def argmax_on(
    model: Any, completions: Sequence[TokenizedCompletion], vocabulary: int, batch_tokens: int
) -> list[Drafted]:
    """For each completion, whether the model's argmax is the token at every place, and the margin of its logit. BrokenDraft for
    NaN logits."""
    found, passes = dict[int, Drafted](), TeacherForced(model)
    lengths = [len(item.prompt) + len(item.tokens) for item in completions]
    for numbers in batches(lengths, batch_tokens):
        batch = PaddedBatch([completions[number] for number in numbers])
        parts = [_drafted(logits_nV, batch.tokens_N[part]) for part, logits_nV in passes.logits(batch, vocabulary)]
        columns = [batch.by_row(np.concatenate(column)) for column in zip(*parts, strict=True)]
        found |= {number: Drafted(*own) for number, *own in zip(numbers, *columns, strict=True)}
    return [found[number] for number in range(len(completions))]


def _drafted(logits_nV: torch.Tensor, tokens_n: torch.Tensor) -> tuple[NDArray[Any], ...]:
    """The columns of `Drafted`."""
    if bool(torch.isnan(logits_nV).any()):
        raise BrokenDraft("the draft returned NaN logits: its weights are damaged")
    tokens_n1 = tokens_n.to(logits_nV.device).unsqueeze(-1)
    own_n = logits_nV.gather(-1, tokens_n1).squeeze(-1)
    others_n = logits_nV.scatter(-1, tokens_n1, -torch.inf).amax(-1)
    is_argmax_n = logits_nV.argmax(-1) == tokens_n1.squeeze(-1)
    margin_n = (own_n.double() - others_n.double()).abs()
    return tuple(column.cpu().numpy() for column in (is_argmax_n, margin_n, logits_nV.abs().amax(-1).double()))
