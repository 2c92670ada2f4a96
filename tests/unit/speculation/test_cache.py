"""The ragged cache: decoding with it equals full passes without a cache."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.models.attention_layers import attention_windows
from pipeline.speculation.cache import RaggedCache
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.forward import CachedModel
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.model_forward import ModelForward
from tests.fakes import family_model, full_logits, tiny_llama

VOCABULARY = 32


def _rows(lengths: list[int], seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def _side(model: Any, rows: int, capacity: int, llama_forward: bool = False) -> CachedModel:
    body = choose_forward(model, VOCABULARY, llama_forward)
    assert isinstance(body, LlamaForward if llama_forward else ModelForward)
    return CachedModel(body, rows, capacity)


def _prefill(side: CachedModel, texts: list[list[int]]) -> None:
    """As the decoder does: everything but each prompt's last token, short rows running into zeros."""
    width = max(len(text) for text in texts) - 1
    ids_BT = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        ids_BT[row, : min(len(text), width)] = torch.tensor(text[:width])
    side.logits(ids_BT, [0] * len(texts), keep=1)


@pytest.mark.parametrize(
    ("attention", "llama_forward", "tolerance"),
    # The eager attention of transformers computes its softmax in float32, whatever the model's dtype.
    [("sdpa", False, 1e-12), ("eager", False, 1e-6), ("sdpa", True, 1e-12)],
)
def test_decoding_with_the_cache_equals_full_passes(attention: str, llama_forward: bool, tolerance: float) -> None:
    """Prompts of 7, 1 and 4 tokens: token by token and in blocks, the logits are those of full forward passes."""
    model = tiny_llama(3, attention=attention)
    texts, more = _rows([7, 1, 4]), _rows([9, 9, 9], seed=2)
    side = _side(model, 3, 32, llama_forward)
    _prefill(side, texts)
    fed = [len(text) - 1 for text in texts]
    whole = [text + extra for text, extra in zip(texts, more, strict=True)]
    for width in (1, 1, 3, 2, 1):
        block_BT = torch.tensor([row[at : at + width] for row, at in zip(whole, fed, strict=True)])
        logits_BTV = side.logits(block_BT, fed, keep=width)
        for row, at in enumerate(fed):
            expected_TV = full_logits(model, whole[row][: at + width])[-width:]
            torch.testing.assert_close(expected_TV, logits_BTV[row], atol=tolerance, rtol=0)
        fed = [at + width for at in fed]


@pytest.mark.parametrize("llama_forward", [False, True])
def test_rejected_tokens_leave_no_trace(llama_forward: bool) -> None:
    """Blocks of wrong tokens, with a different number rejected in each row, are overwritten before any query attends to them."""
    model = tiny_llama(4)
    texts, wrong = _rows([5, 2, 3]), _rows([6, 6, 6], seed=9)
    side = _side(model, 3, 40, llama_forward)
    _prefill(side, texts)
    lengths = [len(text) for text in texts]
    for kept in ([0, 3, 1], [2, 0, 4]):
        blocks = [[text[-1], *row[:5]] for text, row in zip(texts, wrong, strict=True)]
        side.logits(torch.tensor(blocks), [length - 1 for length in lengths], keep=6)
        texts = [text + row[:count] + [1] for text, row, count in zip(texts, wrong, kept, strict=True)]
        lengths = [len(text) for text in texts]
    last_B1 = torch.tensor([[text[-1]] for text in texts])
    logits_BTV = side.logits(last_B1, [length - 1 for length in lengths], keep=1)

    for row, text in enumerate(texts):
        torch.testing.assert_close(full_logits(model, text)[-1], logits_BTV[row, 0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("llama_forward", [False, True])
def test_selected_rows_keep_their_own_past(llama_forward: bool) -> None:
    """After rows were dropped and reordered, each continues from its own keys and values."""
    model, texts = tiny_llama(5), _rows([4, 6, 3])
    side = _side(model, 3, 16, llama_forward)
    _prefill(side, texts)
    side.select([2, 0])
    chosen = [texts[2], texts[0]]
    last = torch.tensor([[text[-1]] for text in chosen])
    logits_BTV = side.logits(last, [len(text) - 1 for text in chosen], keep=1)

    for row, text in enumerate(chosen):
        torch.testing.assert_close(full_logits(model, text)[-1], logits_BTV[row, 0], atol=1e-12, rtol=0)


def test_capacity_is_a_bound() -> None:
    """A slot beyond the capacity is an error, not a silent overwrite."""
    with pytest.raises(ValueError, match="capacity of 4"):
        RaggedCache(1, 4).set_slots(torch.tensor([[4]]), 5)


def test_mask_shows_a_query_its_own_slot_and_what_precedes_it() -> None:
    """The query at slot s attends to slots 0..s."""
    mask = RaggedCache(2, 8).set_slots(torch.tensor([[0, 1], [2, 3]]), 4)

    assert [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]] == mask[:, 0].int().tolist()


SEEN = [[0, 0, 0, 0], [1, 0, 5, 2], [2, 9, 3, 5], [2, 10, 4, 6], [1, 8, 4, 7], [2, 11, 5, 7]]


@pytest.mark.parametrize(
    ("llama_forward", "seen"), [*((False, seen) for seen in SEEN), (True, SEEN[1]), (True, SEEN[4])], ids=str
)
def test_filling_the_cache_equals_full_passes(llama_forward: bool, seen: list[int]) -> None:
    """Rows that lack one, two or many tokens: afterwards the cache of every row is valid as far as `seen` says, and the
    next logits equal those of full passes."""
    model, texts = tiny_llama(6), _rows([3, 12, 6, 8])
    side = _side(model, 4, 20, llama_forward)
    ids_BS, lengths = torch.full((4, 20), 7), [len(text) for text in texts]
    for row, text in enumerate(texts):
        ids_BS[row, : len(text)] = torch.tensor(text)
    for row, count in enumerate(seen):  # each row to its own slot; what the others get is written over or unseen
        if count:
            first = [0 if other == row else 19 - count for other in range(4)]
            side.logits(ids_BS[row : row + 1, :count].expand(4, count), first, keep=1)
    side.seen = list(seen)
    side.fill_cache(ids_BS, lengths)

    assert all(length - 2 <= held <= length - 1 for length, held in zip(lengths, side.seen, strict=True))
    for row, (text, held) in enumerate(zip(texts, side.seen, strict=True)):
        count = len(text) - held
        fed_BT = torch.tensor(text[held:]).expand(4, count)
        first = [held if other == row else 19 - count for other in range(4)]
        logits_V = side.logits(fed_BT, first, keep=1)[row, 0]
        torch.testing.assert_close(full_logits(model, text)[-1], logits_V, atol=1e-12, rtol=0)


@pytest.mark.parametrize("llama_forward", [False, True])
@pytest.mark.parametrize("prompts", [[7, 1, 12], [12, 12, 12]], ids=str)
def test_a_sliding_window_is_kept(llama_forward: bool, prompts: list[int]) -> None:
    """Past the window, in long and short passes, ragged and not, the logits are those of full passes."""
    model = family_model("Mistral", sliding_window=5)
    side = CachedModel(choose_forward(model, VOCABULARY, llama_forward), 3, 40)
    texts, fed = _rows([30, 30, 30]), [length - 1 for length in prompts]
    _prefill(side, [text[:length] for text, length in zip(texts, prompts, strict=True)])
    for width in (1, 4, 1, 6):
        block_BT = torch.tensor([text[at : at + width] for text, at in zip(texts, fed, strict=True)])
        logits_BTV = side.logits(block_BT, fed, keep=width)
        for row, at in enumerate(fed):
            expected_TV = full_logits(model, texts[row][: at + width])[-width:, :VOCABULARY]
            torch.testing.assert_close(expected_TV, logits_BTV[row], atol=1e-12, rtol=0)
        fed = [at + width for at in fed]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"sliding_window": 8}, {"sliding_attention": 8}),
        ({"sliding_window": 8, "use_sliding_window": False}, {}),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, {}),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, {"sliding_attention": 8}),
        ({"attention_chunk_size": 6, "layer_types": ["chunked_attention"]}, {"chunked_attention": 6}),
    ],
)
def test_the_attention_windows_of_a_config(settings: dict[str, Any], expected: dict[str, int]) -> None:
    """A window counts only if a layer uses it; model families configure this in three ways."""
    assert expected == attention_windows(SimpleNamespace(**settings))
