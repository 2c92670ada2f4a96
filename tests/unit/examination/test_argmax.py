"""A draft's choice on given tokens, and by how much."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft
from pipeline.examination.argmax import argmax_on
from tests.fakes import TableModel, table_model, tiny_llama
from tests.heads import eagle3_draft, medusa_draft


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
        for item, found in zip(texts, argmax_on(PlainDraft(model, 8), texts, 1, size), strict=True):
            ids = [*item.prompt.tolist(), *item.tokens.tolist()]
            for place, token in enumerate(item.tokens.tolist()):
                at = len(item.prompt) + place - 1
                logits = model.table_PVW[at % 2, ids[at], :8]
                others = torch.cat([logits[:token], logits[token + 1 :]]).max()
                assert bool(logits[token] > others) == bool(found.is_argmax[place])
                assert float((logits[token] - others).abs()) == pytest.approx(float(found.margin[place]))
                assert float(logits.abs().max()) == pytest.approx(float(found.largest[place]))


def test_nan_is_no_choice() -> None:
    """The weights are damaged."""
    with pytest.raises(BrokenDraft, match="NaN"):
        argmax_on(PlainDraft(TableModel(torch.full((1, 4, 4), torch.nan)), 4), [text([1], [2])], 1, 100)


@pytest.mark.parametrize("make", [eagle3_draft, lambda target: eagle3_draft(target, kept=15), medusa_draft])
def test_the_choice_of_a_head_is_by_start_and_place(make: Callable[[Any], Any]) -> None:
    """As it is computed round by round without a cache, whatever the batch."""
    head = make(tiny_llama(0, vocabulary=24, hidden=32, layers=4))
    texts = [text([1, 2, 3], [4, 5, 6, 7]), text([7, 8], [0, 1, 2])]
    for size in (1, 100):
        for item, found in zip(texts, argmax_on(head, texts, 3, size), strict=True):
            ids, before = [*item.prompt.tolist(), *item.tokens.tolist()], len(item.prompt)
            for start, place in np.ndindex(len(item.tokens), 3):
                at = before + start + place
                if at < len(ids):
                    logits, token = head.logits_after(ids[:at], before + start), ids[at]
                    margin = (logits[token] - torch.cat([logits[:token], logits[token + 1 :]]).max()).abs()
                    assert bool(logits.argmax() == token) == bool(found.is_argmax[start, place])
                    assert float(margin) == pytest.approx(float(found.margin[start, place]))
                    assert float(logits[logits.isfinite()].abs().max()) == pytest.approx(
                        float(found.largest[start, place])
                    )


def test_places_beyond_the_heads_are_never_chosen() -> None:
    """Medusa has as many places as heads."""
    head = medusa_draft(tiny_llama(0, vocabulary=24, hidden=32, layers=4), heads=2)
    (found,) = argmax_on(head, [text([1, 2, 3], [4, 5, 6, 7])], 4, 100)
    assert ((4, 4), False) == (found.is_argmax.shape, bool(found.is_argmax[:, 2:].any()))
