"""A draft's choice on given tokens, and by how much."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.errors import BrokenDraft
from pipeline.examination.argmax import argmax_on
from tests.fakes import TableModel, table_model


@dataclass
class Text:
    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]


def text(prompt: list[int], tokens: list[int]) -> Text:
    return Text(np.array(prompt, dtype=np.int32), np.array(tokens, dtype=np.int32))


def test_the_choice_and_its_margin_are_those_of_the_logits() -> None:
    """At every place, whatever the batch, and without the columns that pad the vocabulary."""
    model = table_model(8, seed=3, padding=2)
    texts = [text([1, 2, 3], [4, 5, 6]), text([7], [0, 1, 2, 3, 4]), text([2], [3])]
    for size in (1, 100):
        for item, found in zip(texts, argmax_on(model, texts, 8, size), strict=True):
            ids = [*item.prompt.tolist(), *item.tokens.tolist()]
            for place, token in enumerate(item.tokens.tolist()):
                at = len(item.prompt) + place - 1
                logits = model.table_PVW[at % 2, ids[at], :8]
                others = torch.cat([logits[:token], logits[token + 1 :]]).max()
                assert bool(logits[token] > others) == bool(found.is_argmax_N[place])
                assert float((logits[token] - others).abs()) == pytest.approx(float(found.margin_N[place]))
                assert float(logits.abs().max()) == pytest.approx(float(found.largest_N[place]))


def test_nan_is_no_choice() -> None:
    """The weights are damaged."""
    with pytest.raises(BrokenDraft, match="NaN"):
        argmax_on(TableModel(torch.full((1, 4, 4), torch.nan)), [text([1], [2])], 4, 100)
