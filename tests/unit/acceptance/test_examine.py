"""Examination without decoding: batched teacher-forced passes against one pass per completion."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.examine import acceptance_probabilities, engine_sampling, examine
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.teacher_forced import batches
from tests.fakes import family_model, full_logits, stored_completion, table_model, tiny_llama

VOCABULARY = 32
FILTERED = Sampling(0.8, 12, 0.95)


@pytest.fixture(scope="module")
def draft() -> Any:
    """Its logits are wider than the vocabulary, as padded models' are."""
    return tiny_llama(31, vocabulary=40)


@pytest.fixture(scope="module")
def rows() -> list[StoredCompletion]:
    generator = np.random.default_rng(0)
    made = []
    for number, (before, after) in enumerate([(3, 9), (1, 4), (8, 2), (5, 12), (2, 1)]):
        ids = generator.integers(0, VOCABULARY, before + after)
        log_p = np.log(generator.random(after))
        made.append(stored_completion(ids[:before], ids[before:], name=f"p{number}", log_p=log_p))
    return made


def _drafts(models: dict[str, Any]) -> dict[str, PlainDraft]:
    return {name: PlainDraft(model, VOCABULARY) for name, model in models.items()}


def _directly(model: Any, row: StoredCompletion, draft_sampling: Sampling, greedy: bool) -> list[float]:
    """a_t of one completion from the definition: one pass, no batch, a token at a time."""
    logits_TV = full_logits(model, [*row.prompt.tolist(), *row.tokens.tolist()])[:, :VOCABULARY]
    found = []
    for index, token in enumerate(row.tokens.tolist()):
        logits_V = logits_TV[len(row.prompt) - 1 + index]
        q = math.exp(float(log_probabilities(logits_V, draft_sampling)[token]))
        found.append(float(int(logits_V.argmax()) == token) if greedy else min(1.0, q / math.exp(row.log_p[index])))
    return found


@pytest.mark.parametrize(
    ("sampling", "draft_sampling"),
    [(Sampling(), Sampling()), (FILTERED, FILTERED), (Sampling(), GREEDY), (GREEDY, GREEDY), (GREEDY, Sampling())],
    ids=str,
)
@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_batches_find_what_single_passes_find(
    draft: Any, rows: list[StoredCompletion], sampling: Sampling, draft_sampling: Sampling, batch_tokens: int
) -> None:
    """Every a_t, in the given order, for any batch size; padding columns are ignored; greedy sides give 0 or 1."""
    greedy = sampling.greedy or draft_sampling.greedy
    found = acceptance_probabilities(PlainDraft(draft, VOCABULARY), rows, sampling, draft_sampling, batch_tokens)

    for row, a_T in zip(rows, found, strict=True):
        np.testing.assert_allclose(_directly(draft, row, draft_sampling, greedy), a_T, atol=1e-6)


def test_figures_do_not_depend_on_the_order_of_completions(draft: Any, rows: list[StoredCompletion]) -> None:
    """Batches are a function of lengths, so that the same completions in another order give the same bits."""
    order = [3, 0, 4, 1, 2]
    forward = acceptance_probabilities(PlainDraft(draft, VOCABULARY), rows, Sampling(), Sampling(), 30)
    shuffled = acceptance_probabilities(
        PlainDraft(draft, VOCABULARY), [rows[i] for i in order], Sampling(), Sampling(), 30
    )

    assert [forward[i].tolist() for i in order] == [a_T.tolist() for a_T in shuffled]


def test_batches_hold_each_row_once_and_keep_to_their_size() -> None:
    """Sorted by length; padding counts; a row longer than the limit is a batch of its own."""
    lengths = [5, 3, 50, 4, 3, 9]
    found = list(batches(lengths, 16))

    assert [1, 4, 3, 0, 5, 2] == [number for group in found for number in group]
    assert all(len(group) == 1 or len(group) * max(lengths[n] for n in group) <= 16 for group in found)
    assert [[1, 4, 3], [0], [5], [2]] == found
    assert [] == list(batches([], 16))


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
@pytest.mark.parametrize("draft_sampling", [FILTERED, GREEDY], ids=str)
def test_logits_are_held_for_a_few_positions(
    family: str, draft_sampling: Sampling, rows: list[StoredCompletion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunking changes no figure. A model whose logits are more than its output layer gives them row by row, and no other gives
    logits for a prompt or padding."""
    capped = {"final_logit_softcapping": 4.0, "head_dim": 8} if family == "Gemma2" else {}
    model = family_model(family, **capped)
    whole = acceptance_probabilities(PlainDraft(model, VOCABULARY), rows, FILTERED, draft_sampling, 10_000)
    monkeypatch.setattr("pipeline.speculation.teacher_forced._LOGITS", 3 * VOCABULARY)
    asked: list[int] = []
    model.lm_head.register_forward_hook(lambda head, given, logits: asked.append(logits.numel() // logits.shape[-1]))
    pieces = acceptance_probabilities(PlainDraft(model, VOCABULARY), rows, FILTERED, draft_sampling, 10_000)

    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    most = max(len(row.prompt) + len(row.tokens) for row in rows)
    asked = [count for count in asked if count != 16]  # of the search for the output layer
    assert ([most] * len(rows) if capped else [3] * 9 + [1]) == asked


@pytest.mark.parametrize("draft_sampling", [Sampling(), GREEDY, FILTERED, Sampling(min_p=0.1)], ids=str)
def test_a_damaged_draft_is_named_with_the_completion(draft_sampling: Sampling) -> None:
    """NaN logits raise an error that names the completion, also for a greedy draft, where argmax would return a token."""
    model = table_model(VOCABULARY, 0)
    model.table_PVW[:, 7, 0] = math.nan  # one logit is enough
    completions = [stored_completion([1], [2, 3]), stored_completion([1], [7, 3]), stored_completion([4], [5, 6])]

    with pytest.raises(UnderstudyError, match="completion 1"):
        acceptance_probabilities(PlainDraft(model, VOCABULARY), completions, Sampling(), draft_sampling, 100)


def test_many_drafts_are_examined_as_each_alone(draft: Any, rows: list[StoredCompletion]) -> None:
    """Several drafts in one pass over the batches get bit-identical results to each alone."""
    models = {"one": draft, "two": tiny_llama(5), "table": table_model(VOCABULARY, 3)}
    found = examine(_drafts(models), rows, FILTERED, FILTERED, 30, 5)

    assert list(models) == list(found)
    for name, model in models.items():
        alone = acceptance_probabilities(PlainDraft(model, VOCABULARY), rows, FILTERED, FILTERED, 30)
        assert [a_T.tolist() for a_T in alone] == [one.at(5).tolist() for one in found[name]]


def test_a_damaged_draft_spoils_no_other(draft: Any, rows: list[StoredCompletion]) -> None:
    """A damaged draft gets the reason in place of figures, with the completion number; the others get their figures."""
    damaged = table_model(VOCABULARY, 0)
    damaged.table_PVW[:] = math.nan
    found = examine(_drafts({"bad": damaged, "good": draft}), rows, Sampling(), Sampling(), 20, 5, first_number=100)

    assert isinstance(found["bad"], BrokenDraft)
    assert "the draft returned NaN logits on completion 104" in str(found["bad"])  # the shortest is examined first
    alone = acceptance_probabilities(PlainDraft(draft, VOCABULARY), rows, Sampling(), Sampling(), 20)
    assert [a_T.tolist() for a_T in alone] == [one.at(5).tolist() for one in found["good"]]


def test_a_draft_that_does_not_fit_is_named(rows: list[StoredCompletion]) -> None:
    """A context too short for prompt and completion, and a vocabulary smaller than the pair's: one line each."""
    short, narrow = tiny_llama(1), tiny_llama(1, vocabulary=VOCABULARY - 1)
    short.config.max_position_embeddings = 16
    rows = [stored_completion(row.prompt % 30, row.tokens % 30) for row in rows]
    with pytest.raises(BrokenDraft, match=r"17 tokens long and the draft's context is 16: lower .* \(completion 3\)"):
        acceptance_probabilities(PlainDraft(short, VOCABULARY), rows, Sampling(), Sampling(), 10_000)
    found = examine(_drafts({"short": short, "good": tiny_llama(1)}), rows, Sampling(), Sampling(), 10_000, 5)
    assert [BrokenDraft, list] == [type(found[name]) for name in ("short", "good")]
    with pytest.raises(BrokenDraft, match="logits for 31 tokens and the pair shares 32: use a draft with"):
        acceptance_probabilities(PlainDraft(narrow, VOCABULARY), rows, Sampling(), Sampling(), 10_000)


def test_among_equals_the_lowest_id_is_the_drafts_choice() -> None:
    """Ties are broken as in greedy decoding."""
    model = table_model(VOCABULARY, 0)
    model.table_PVW[..., [5, 9, 20]] = 60.0
    (a_T,) = acceptance_probabilities(
        PlainDraft(model, VOCABULARY), [stored_completion([1], [5, 9, 20, 5])], GREEDY, GREEDY, 100
    )

    assert [1, 0, 0, 1] == a_T.tolist()


def test_a_token_the_draft_rules_out_is_never_accepted() -> None:
    """q = 0 gives a = 0, without a warning."""
    model = table_model(VOCABULARY, 0)
    model.table_PVW[..., 3] = -torch.inf
    (a_T,) = acceptance_probabilities(
        PlainDraft(model, VOCABULARY), [stored_completion([1], [3, 2])], Sampling(), Sampling(), 100
    )

    assert 0 == a_T[0]
    assert a_T[1] > 0


def test_progress_counts_completions(draft: Any, rows: list[StoredCompletion]) -> None:
    """`on_done` is called for every completion once."""
    heard: list[int] = []
    examine(_drafts({"draft": draft}), rows, Sampling(), Sampling(), 30, 5, heard.append)

    assert len(rows) == sum(heard)


@pytest.mark.parametrize(
    ("convention", "deployed", "drafting", "expected"),
    [
        ("vllm", FILTERED, "probabilistic", Sampling(0.8)),
        ("transformers", FILTERED, "probabilistic", FILTERED),
        ("user", FILTERED, "probabilistic", FILTERED),
        ("openvino", FILTERED, "greedy", GREEDY),
        ("vllm", FILTERED, "greedy", GREEDY),
        ("user", GREEDY, "probabilistic", GREEDY),
    ],
)
def test_what_an_engine_applies_to_its_draft(
    convention: str, deployed: Sampling, drafting: str, expected: Sampling
) -> None:
    """vLLM applies only the temperature, others the target's settings; greedy is greedy."""
    assert expected == engine_sampling(convention, deployed, drafting)
