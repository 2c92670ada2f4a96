"""The ragged cache: what a model computes with it equals full passes without one."""

import pytest
import torch

from pipeline.speculation.cache import RaggedCache
from pipeline.speculation.decoder import Side
from tests.fakes import full_logits, tiny_llama

VOCABULARY = 32


def _rows(lengths: list[int], seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def _prefill(side: Side, texts: list[list[int]]) -> None:
    """As the decoder does: everything but each prompt's last token, short rows running into zeros."""
    width = max(len(text) for text in texts) - 1
    ids_BT = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        ids_BT[row, : min(len(text), width)] = torch.tensor(text[:width])
    side.logits(ids_BT, torch.zeros(len(texts), dtype=torch.long), keep=1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_decoding_with_the_cache_equals_full_passes(attention: str) -> None:
    """Prompts of 7, 1 and 4 tokens: token by token and in blocks, the logits are those of full forward passes."""
    model = tiny_llama(3, attention=attention)
    texts, more = _rows([7, 1, 4]), _rows([9, 9, 9], seed=2)
    side = Side(model, 3, 32, VOCABULARY)
    _prefill(side, texts)
    fed = [len(text) - 1 for text in texts]
    whole = [text + extra for text, extra in zip(texts, more, strict=True)]
    for width in (1, 1, 3, 2, 1):
        block_BT = torch.tensor([row[at : at + width] for row, at in zip(whole, fed, strict=True)])
        logits_BTV = side.logits(block_BT, torch.tensor(fed), keep=width)
        for row, at in enumerate(fed):
            expected_TV = full_logits(model, whole[row][: at + width])[-width:]
            torch.testing.assert_close(expected_TV, logits_BTV[row], atol=1e-12, rtol=0)
        fed = [at + width for at in fed]


def test_rejected_tokens_leave_no_trace() -> None:
    """Blocks of wrong tokens, each row cut back by another amount, are overwritten before anything sees them."""
    model = tiny_llama(4)
    texts, wrong = _rows([5, 2, 3]), _rows([6, 6, 6], seed=9)
    side = Side(model, 3, 40, VOCABULARY)
    _prefill(side, texts)
    lengths = [len(text) for text in texts]
    for kept in ([0, 3, 1], [2, 0, 4]):
        blocks = [[text[-1], *row[:5]] for text, row in zip(texts, wrong, strict=True)]
        side.logits(torch.tensor(blocks), torch.tensor(lengths) - 1, keep=6)
        texts = [text + row[:count] + [1] for text, row, count in zip(texts, wrong, kept, strict=True)]
        lengths = [len(text) for text in texts]
    logits_BTV = side.logits(torch.tensor([[text[-1]] for text in texts]), torch.tensor(lengths) - 1, keep=1)

    for row, text in enumerate(texts):
        torch.testing.assert_close(full_logits(model, text)[-1], logits_BTV[row, 0], atol=1e-12, rtol=0)


def test_selected_rows_keep_their_own_past() -> None:
    """After rows were dropped and reordered, each goes on from its own keys and values."""
    model, texts = tiny_llama(5), _rows([4, 6, 3])
    side = Side(model, 3, 16, VOCABULARY)
    _prefill(side, texts)
    side.cache.select([2, 0])
    chosen = [texts[2], texts[0]]
    last = torch.tensor([[text[-1]] for text in chosen])
    logits_BTV = side.logits(last, torch.tensor([len(text) - 1 for text in chosen]), keep=1)

    for row, text in enumerate(chosen):
        torch.testing.assert_close(full_logits(model, text)[-1], logits_BTV[row, 0], atol=1e-12, rtol=0)


def test_capacity_is_a_bound() -> None:
    """A slot beyond what was allocated is an error, not a silent overwrite."""
    with pytest.raises(ValueError, match="capacity of 4"):
        RaggedCache(1, 4).place(torch.tensor([[4]]), 5)


def test_mask_shows_a_query_its_own_slot_and_what_precedes_it() -> None:
    """The query at slot s sees slots 0..s of everything visible."""
    mask = RaggedCache(2, 8).place(torch.tensor([[0, 1], [2, 3]]), 4)

    assert [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]] == mask[:, 0].int().tolist()
