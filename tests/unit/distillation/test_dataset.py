"""Training batches: each teacher column belongs to the position that predicts its token, with document masking."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.distillation.dataset import PackedCompletions, stored_targets
from pipeline.distillation.weighted_completions import ScoredPrompts
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import unpack
from pipeline.speculation.teacher_forced import at_positions
from tests.fakes import family_model, full_logits, stored_completion


@pytest.fixture
def items() -> list[StoredCompletion]:
    """Completions of different lengths; the second has three tokens of lookahead. The last two share a row."""
    second = stored_completion([11], [12, 13, 14, 15, 16, 17], name="b", length=3, seed=2)
    return [
        stored_completion([5, 6, 7, 4], [8, 9], name="a", seed=1),
        replace(second, certain=np.array([3, 1, 2, 0, 0, 3], dtype=np.uint8)),
        stored_completion([21, 22], [23], name="c", seed=3),
        stored_completion([24], [25, 26], name="d", seed=4, keep="sampled"),
    ]


def _batch(items: list[StoredCompletion], *rows: int) -> dict[str, torch.Tensor]:
    return PackedCompletions(items).collate([{"row": row} for row in rows])


def _marked(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T): whether a position predicts a token that is learnt."""
    marked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    marked.view(-1)[batch["predicts"]] = True
    return marked


def test_a_position_predicts_the_next_token(items: list[StoredCompletion]) -> None:
    """The first loss position is the prompt's last token, the last one is before the last token; no document predicts the
    next one's first token."""
    batch = _batch(items, 0, 2)

    assert [[0], [1], [2, 3]] == list(PackedCompletions(items).rows)
    assert [[5, 6, 7, 4, 8, 9], [21, 22, 23, 24, 25, 26]] == batch["input_ids"].tolist()
    assert [[0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0]] == _marked(batch).int().tolist()
    assert [8, 9, 23, 25, 26] == batch["tokens"].tolist()
    assert [0, 2, 3] == batch["documents"].tolist()


def test_documents_that_may_not_share_have_a_row_each(items: list[StoredCompletion]) -> None:
    """For models without document masking."""
    documents = PackedCompletions(items, together=False)

    assert [[0], [1], [2], [3]] == list(documents.rows)
    assert "position_ids" not in documents.collate([{"row": row} for row in range(4)])


def test_every_marked_position_is_followed_by_its_token(items: list[StoredCompletion]) -> None:
    """What `predicts` marks at t is the input at t + 1, in every row, in the order of the teacher's columns."""
    batch = _batch(items, 2, 0, 1)
    width = batch["input_ids"].shape[1]
    row, position = batch["predicts"] // width, batch["predicts"] % width

    assert batch["input_ids"][row, position + 1].tolist() == batch["tokens"].tolist()


def test_teacher_columns_belong_to_their_tokens(items: list[StoredCompletion]) -> None:
    """Each column equals the store's, document by document, in the batch's order."""
    stored = stored_targets(_batch(items, 2, 1))
    order = [items[2], items[3], items[1]]
    expected = [unpack(i.entries[: i.length], i.certain[: i.length], i.rest_log_p[: i.length], 32) for i in order]

    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in expected]), stored.ids_NK.numpy())
    np.testing.assert_allclose(np.concatenate([log_p for _, log_p in expected]), stored.log_p_NK.numpy())
    for name, column in (("certain", stored.certain_N), ("rest_log_p", stored.rest_log_p_N)):
        whole = np.concatenate([getattr(item, name)[: item.length] for item in order])
        np.testing.assert_array_equal(whole.astype(float), column.double().numpy())


def test_the_lookahead_is_not_trained_on(items: list[StoredCompletion]) -> None:
    """Lookahead tokens are only for the examination."""
    batch = _batch(items, 1)

    assert [[11, 12, 13, 14]] == batch["input_ids"].tolist()
    assert [[True, True, True, False]] == _marked(batch).tolist()


def test_columns_have_the_types_a_loss_takes(items: list[StoredCompletion]) -> None:
    """Ids are int64 and log-probabilities fp32, for any stored types."""
    stored = stored_targets(_batch(items, 0))

    assert {torch.int64} == {column.dtype for column in (stored.ids_NK, stored.certain_N, stored.tokens_N)}
    assert {torch.float32} == {column.dtype for column in (stored.log_p_NK, stored.rest_log_p_N)}


def test_positions_restart_at_each_document(items: list[StoredCompletion]) -> None:
    """position_ids are omitted if every row is one document, so that attention uses its fast path."""
    assert "position_ids" not in _batch(items, 0, 1)
    assert [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]] == _batch(items, 2, 1)["position_ids"].tolist()


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "GPT2"])
def test_documents_of_a_row_do_not_see_each_other(family: str) -> None:
    """The logits of a packed forward pass, as the trainer runs it, equal those of each document alone."""
    model: Any = family_model(family, torch.float64)
    generator = np.random.default_rng(0)
    items = [
        stored_completion(
            generator.integers(1, 31, 1 + n % 3), generator.integers(1, 31, 3 + n % 7), name=str(n), seed=n
        )
        for n in range(12)
    ]
    documents = PackedCompletions(items)
    chosen = [{"row": row} for row in range(len(documents.rows))]
    batch = documents.collate(chosen)
    feed = {name: batch[name] for name in ("input_ids", "position_ids")}
    with torch.inference_mode():
        logits_NV = at_positions(model(**feed, use_cache=False).logits, batch["predicts"])
    expected = []
    for number in batch["documents"].tolist():
        item = items[number]
        said = full_logits(model, [*item.prompt.tolist(), *item.tokens.tolist()])
        expected.append(said[len(item.prompt) - 1 : -1])

    assert any(len(row) > 1 for row in documents.rows)
    torch.testing.assert_close(torch.cat(expected), logits_NV, atol=1e-9, rtol=0)


def test_rows_are_packed_without_the_lookahead() -> None:
    """The lookahead takes no space in a row."""
    items = [
        stored_completion([1, 2, 3, 4], [5, 6]),
        stored_completion([7], [8, 9, 10, 11, 12, 13], length=1),
        stored_completion([1], [2, 3, 4]),
    ]

    assert [[0], [1, 2]] == list(PackedCompletions(items).rows)


def test_no_completion_is_cut() -> None:
    """A row is as long as the longest document, so each token of each completion has its loss position, once. Only
    `generate.max_new_tokens` limits completions."""
    lengths = [2100, 3, 700, 1, 1399, 40]
    items = [stored_completion([1, 2], np.arange(length) % 32, name=f"{length}") for length in lengths]
    documents = PackedCompletions(items)
    batch = documents.collate([{"row": row} for row in range(len(documents.rows))])

    assert sum(lengths) == len(batch["predicts"]) == len(batch["tokens"])
    assert 2102 == batch["input_ids"].shape[1]
    assert sorted(np.concatenate([item.tokens for item in items])) == sorted(batch["tokens"].tolist())


@pytest.mark.parametrize("rows", [4, 3, 1])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_divide_the_rows_of_a_batch(rows: int, processes: int) -> None:
    """Each row is one process's, and every process knows the positions of all; one without a row computes one that counts for
    nothing."""
    items = [stored_completion([1, 2], [3] * (n + 1), name=f"p{n}") for n in range(4)]
    documents = PackedCompletions(items, together=False)
    chosen = [{"row": n} for n in range(rows)]
    parts = [documents.collate_part(chosen, number, processes) for number in range(processes)]
    whole = documents.collate(chosen)

    assert {len(whole["tokens"])} == {part["positions"] for part in parts}
    assert len(whole["tokens"]) == sum(part["counted"] for part in parts)
    counting = [part for part in parts if part["counted"]]
    assert whole["documents"].tolist() == [number for part in counting for number in part["documents"].tolist()]
    assert all(part["counted"] == len(part["tokens"]) for part in counting)
    assert all(len(part["tokens"]) for part in parts)


@pytest.fixture
def prompts() -> ScoredPrompts:
    """Of `items`: two positions of a's prompt before its last token, one of d's own, and those of a prompt without completion."""
    return ScoredPrompts(
        [
            stored_completion([9], [9, 9, 9], name="z", seed=5),
            stored_completion([5], [6, 7], name="a", seed=6),
            stored_completion([24], [3], name="e", seed=7),
        ],
        0.5,
    )


def test_positions_of_prompts_are_learnt_before_the_completion(
    items: list[StoredCompletion], prompts: ScoredPrompts
) -> None:
    """In the order of the row, each with its own distribution, under a label of their own. A prompt's token is no sample of the
    target, so the likeliest stands for it."""
    documents = PackedCompletions(items, prompts=prompts)
    plain = PackedCompletions(items).collate([{"row": 0}, {"row": 2}])
    batch = documents.collate([{"row": 0}, {"row": 2}])

    assert ("prompt",) == documents.segments
    assert [[1, 1, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0]] == _marked(batch).int().tolist()
    assert plain["input_ids"].tolist() == batch["input_ids"].tolist()
    assert [0, 0, 1, 1, 1, 1, 1] == batch["segments"].tolist()  # 1: no label
    of_prompt = stored_completion([5], [6, 7], name="a", seed=6)
    ids_NK, log_p_NK = unpack(of_prompt.entries, of_prompt.certain, of_prompt.rest_log_p, of_prompt.vocabulary)
    assert ids_NK.tolist() == batch["ids"][:2].tolist()
    np.testing.assert_array_equal(log_p_NK, batch["log_p"][:2].numpy())
    assert [*ids_NK[:, 0].tolist(), 8, 9, 23, 25, 26] == batch["tokens"].tolist()
    for name in ("ids", "log_p", "certain", "rest_log_p", "tokens"):
        assert plain[name].tolist() == batch[name][2:].tolist(), name


@pytest.mark.parametrize("processes", [1, 2])
def test_a_position_of_a_prompt_counts_by_its_weight(
    items: list[StoredCompletion], prompts: ScoredPrompts, processes: int
) -> None:
    """In every process all rows are counted together: 2 + 3 tokens of completions and two of a prompt at a half."""
    documents = PackedCompletions(items, prompts=prompts)
    parts = [documents.collate_part([{"row": 0}, {"row": 1}], number, processes) for number in range(processes)]

    assert [6.0] * processes == [part["positions"] for part in parts]
    assert [7] if processes == 1 else [4, 3] == [part["counted"] for part in parts]


def test_prompts_that_are_not_scored_have_no_place(items: list[StoredCompletion], prompts: ScoredPrompts) -> None:
    assert [1, -1, -1, -1] == prompts.places(items).tolist()
    assert [-1] * 4 == ScoredPrompts([], 1.0).places(items).tolist()
    assert [1.0, 0.0] == prompts.weights(np.array([1, -1])).tolist()
    batch = PackedCompletions(items, prompts=ScoredPrompts([], 1.0)).collate([{"row": 0}])
    assert [8, 9] == batch["tokens"].tolist()
