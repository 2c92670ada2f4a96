"""What a draft chooses on given token ids, and by how much: one teacher-forced pass. Shapes: B rows, T positions, V tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.acceptance.examine import PaddedBatch, TokenizedCompletion, batches
from pipeline.acceptance.explained_counts import Drafted
from pipeline.errors import BrokenDraft


@torch.inference_mode()
def argmax_on(
    model: Any, completions: Sequence[TokenizedCompletion], vocabulary: int, batch_tokens: int
) -> list[Drafted]:
    """For each completion, whether the model's argmax is the token at every place, and the margin of its logit. BrokenDraft for
    NaN logits."""
    found = dict[int, Drafted]()
    lengths = [len(item.prompt) + len(item.tokens) for item in completions]
    for numbers in batches(lengths, batch_tokens):
        rows = [completions[number] for number in numbers]
        batch = PaddedBatch(rows)
        ids_BT = batch.ids_BT.to(model.device)
        output = model(input_ids=ids_BT, use_cache=False, logits_to_keep=batch.width - batch.first)
        logits_BTV = output.logits[:, :-1, :vocabulary]
        next_BT1 = ids_BT[:, batch.first + 1 :].unsqueeze(-1)
        for index, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            begin = len(row.prompt) - 1 - batch.first
            window = slice(begin, begin + len(row.tokens))
            found[number] = _drafted(logits_BTV[index, window], next_BT1[index, window])
    return [found[number] for number in range(len(completions))]


def _drafted(logits_TV: torch.Tensor, tokens_T1: torch.Tensor) -> Drafted:
    if bool(torch.isnan(logits_TV).any()):
        raise BrokenDraft("the draft returned NaN logits: its weights are damaged")
    own_T = logits_TV.gather(-1, tokens_T1).squeeze(-1)
    others_T = logits_TV.scatter(-1, tokens_T1, -torch.inf).amax(-1)
    is_argmax_T = logits_TV.argmax(-1) == tokens_T1.squeeze(-1)
    margin_T = (own_T.double() - others_T.double()).abs()
    return Drafted(
        is_argmax_T.cpu().numpy().astype(np.bool_),
        margin_T.cpu().numpy().astype(np.float64),
        logits_TV.abs().amax(-1).double().cpu().numpy().astype(np.float64),
    )
