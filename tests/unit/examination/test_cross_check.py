"""The cross-check of the examination with a real decode."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.cross_check import attempt_prompts, cross_check, decoded_starts, round_starts
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.decoder import Completion
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling
from tests.fakes import TableModel, full_logits, greedy_text, stored_completion, table_model, tiny_llama

PROMPTS = [[1, 2, 3], [4], [9, 8, 7, 6]]


def settings(tokens: int) -> EvaluateConfig:
    return EvaluateConfig(crosscheck_gamma=3, crosscheck_tokens=tokens)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    models = [tiny_llama(41, layers=1, dtype=torch.float32) for _ in range(2)]
    with torch.no_grad():
        noise = torch.randn(models[1].lm_head.weight.shape, generator=torch.Generator().manual_seed(1))
        models[1].lm_head.weight += 0.12 * noise
    return models[0], models[1]


def _stored(target: Any, count: int = 14, vocabulary: int = 32) -> list[Any]:
    texts = [greedy_text(target, prompt, count, vocabulary) for prompt in PROMPTS]
    return [
        stored_completion(p, text, name=f"p{n}", greedy=True)
        for n, (p, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]


def test_a_sound_pair_agrees(pair: tuple[Any, Any]) -> None:
    """A decode of the target's completions has no difference, and takes the predicted number of rounds."""
    found = cross_check(pair[0], PlainDraft(pair[1], 32), _stored(pair[0]), settings(12), [])

    assert {"prompts": 3, "tokens": 36, "gamma": 3, "differences": [], "exact_arithmetic": True, "agrees": True} == {
        name: getattr(found, name)
        for name in ("prompts", "tokens", "gamma", "differences", "exact_arithmetic", "agrees")
    }
    assert found.rounds_predicted == found.rounds_decoded


class _SeesDomains(PlainDraft):
    """Which domains it is told of, examined and while decoding."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, 32)
        self.seen = list[tuple[str, list[str]]]()

    def examine(self, batch: Any, *rest: Any) -> Any:
        self.seen.append(("examine", [row.domain for row in batch.rows]))
        return super().examine(batch, *rest)

    def begin(self, batch: Any, *rest: Any) -> Any:
        self.seen.append(("begin", [request.domain for request in batch.requests]))
        return super().begin(batch, *rest)


def test_a_draft_is_told_the_domains_of_its_prompts(pair: tuple[Any, Any]) -> None:
    draft = _SeesDomains(pair[1])
    stored = [replace(item, domain=f"of {item.id}") for item in _stored(pair[0])]
    cross_check(pair[0], draft, stored, settings(12), [])
    assert {"begin": ["of p0", "of p1", "of p2"], "examine": ["of p0", "of p1", "of p2"]} == {
        when: sorted(domains) for when, domains in draft.seen
    }


def test_an_attempt_checks_the_longest_completions(pair: tuple[Any, Any]) -> None:
    """As many as it is asked for, of each kind."""
    stored = _stored(pair[0])
    attempt = attempt_prompts(pair[0], PlainDraft(pair[1], 32), stored, settings(12), [], stored[:1])
    found = [attempt(count) for count in (1, 2)]

    assert found == [
        cross_check(
            pair[0], PlainDraft(pair[1], 32), [stored[number] for number in longest], settings(12), [], stored[:1]
        )
        for longest in ([2], [2, 0])
    ]


def test_a_changed_completion_is_found(pair: tuple[Any, Any]) -> None:
    """A stored token that is no near-tie is listed with its position, and the check fails."""
    stored = _stored(pair[0])
    stored[1].tokens[5] = (stored[1].tokens[5] + 1) % 32
    found = cross_check(pair[0], PlainDraft(pair[1], 32), stored, settings(12), [])

    assert [("p1", 5, "target")] == [(d.prompt, d.position, d.of) for d in found.differences]
    assert found.differences[0].gap > 2e-5
    assert found.agrees is False


def test_differences_of_lower_precision_are_listed_but_explained() -> None:
    """In bf16 a token whose logit is slightly lower is reported and does not fail the check."""
    target = table_model(8, 3, positions=64)
    target.dtype = torch.bfloat16
    text = greedy_text(target, [1, 2], 8, 8)
    logits_V = target.table_PVW[8, text[6]]  # of the last token
    other = (text[7] + 1) % 8
    logits_V[other] = logits_V[text[7]] - 0.02
    found = cross_check(
        target, PlainDraft(target, 8), [stored_completion([1, 2], [*text[:7], other], greedy=True)], settings(8), []
    )

    assert (False, True) == (found.exact_arithmetic, found.agrees)
    assert found.differences


def _sampled(target: Any, sampling: Sampling, seed: int = 0) -> list[StoredCompletion]:
    """Completions with the log p of single passes."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        tokens = np.random.default_rng([seed, number]).integers(32, size=14)
        logits_TV = full_logits(target, [*prompt, *tokens.tolist()])[len(prompt) - 1 : -1].float()
        log_p_T = log_probabilities(logits_TV, sampling)[torch.arange(14), torch.from_numpy(tokens)]
        found.append(stored_completion(prompt, tokens, name=f"s{number}", sampling=sampling, log_p=log_p_T.tolist()))
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.3)], ids=str)
@pytest.mark.parametrize(("dtype", "shift"), [(torch.float32, 0.01), (torch.bfloat16, 0.8)], ids=str)
def test_stored_log_p_is_compared_with_the_targets_own_pass(
    pair: tuple[Any, Any], dtype: torch.dtype, shift: float, sampling: Sampling
) -> None:
    """A log p that is off fails the check, in lower precision too, although the decoder agrees with its own text."""
    target = tiny_llama(41, layers=1, dtype=dtype)
    stored, sampled = _stored(target), _sampled(target, sampling)
    found = cross_check(target, PlainDraft(target, 32), stored, settings(12), [], sampled)
    assert (True, 6) == (found.agrees, found.log_p.completions)

    off = [replace(item, log_p=item.log_p - shift * (item.id == "s1")) for item in sampled]
    found = cross_check(target, PlainDraft(target, 32), stored, settings(12), [], off)
    assert (False, ["s1"]) == (found.agrees, [entry.prompt for entry in found.log_p.different])


def test_a_log_p_that_is_no_number_is_a_difference(pair: tuple[Any, Any]) -> None:
    """NaN is never within the tolerance."""
    stored, sampled = _stored(pair[0]), _sampled(pair[0], Sampling())
    broken = [replace(sampled[0], log_p=np.full_like(sampled[0].log_p, np.nan)), *sampled[1:]]
    found = cross_check(pair[0], PlainDraft(pair[0], 32), stored, settings(12), [], broken)

    assert (False, ["s0"]) == (found.agrees, [entry.prompt for entry in found.log_p.different])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_greedy_text_of_another_model_is_found(pair: tuple[Any, Any], dtype: torch.dtype) -> None:
    """Stored greedy tokens must have the highest logits of the target's own pass, or nearly so."""
    target, other = (tiny_llama(seed, layers=1, dtype=dtype) for seed in (41, 42))

    assert cross_check(target, PlainDraft(target, 32), _stored(target), settings(12), []).log_p.agrees
    assert not cross_check(target, PlainDraft(target, 32), _stored(other), settings(12), []).agrees


class _Fickle(TableModel):
    """A draft that says something else when it drafts than when it is examined, at one position."""

    def __init__(self, table: torch.Tensor, position: int) -> None:
        super().__init__(table)
        self.position, self.dtype = position, torch.float32

    def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        output = super().__call__(input_ids, position_ids, logits_to_keep=kwargs.get("logits_to_keep", 0))
        if position_ids is not None and kwargs["logits_to_keep"] == 1 and self.position in position_ids[:, -1]:
            output.logits = -output.logits
        return output


@pytest.mark.parametrize("position", [3, 5, 7])
def test_a_round_that_ended_elsewhere_is_found(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first differing round is located, in an early round and in the last one, where only the number of rounds
    tells."""
    monkeypatch.setattr("pipeline.speculation.choice.prove", lambda forward, case, vocabulary: None)
    target = table_model(8, 3, positions=64)
    target.dtype = torch.float32
    draft = _Fickle(target.table_PVW, position)
    (stored,) = [stored_completion([1, 2], greedy_text(target, [1, 2], 8, 8), greedy=True)]
    found = cross_check(target, PlainDraft(draft, 8), [stored], settings(8), [])

    # Position s predicts token s + 1 of the sequence; two of them are the prompt.
    assert [("draft", position - 1)] == [(d.of, d.position) for d in found.differences]
    assert found.agrees is False


@pytest.mark.parametrize(("gap", "agrees"), [(1e-6, True), (1e-4, False)])
def test_only_rounding_makes_a_near_tie(gap: float, agrees: bool) -> None:
    """In fp32 a stored token whose logit is lower by a rounding error agrees, and one by a hundred of them does not."""
    target = table_model(8, 3, positions=64)
    target.dtype = torch.float32
    text = greedy_text(target, [1, 2], 8, 8)
    logits_V = target.table_PVW[8, text[6]]  # of the last token
    other = (text[7] + 1) % 8
    logits_V[other] = logits_V[text[7]] - gap
    (stored,) = [stored_completion([1, 2], [*text[:7], other], greedy=True)]
    found = cross_check(target, PlainDraft(target, 8), [stored], settings(8), [])

    assert [(7, pytest.approx(gap, rel=1e-6))] == [(d.position, d.gap) for d in found.differences]
    assert agrees == found.agrees


def test_a_setting_for_memory_changes_no_batch(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In lower precision another batch is another rounding, and would be another result."""
    used = []
    acceptance = Examiner.acceptance

    def spied(examiner: Examiner, draft: Any, completions: Any) -> Any:
        used.append(examiner.settings.batch_tokens)
        return acceptance(examiner, draft, completions)

    monkeypatch.setattr(Examiner, "acceptance", spied)
    for batch_tokens in (512, 8192):
        changed = settings(12).model_copy(update={"batch_tokens": batch_tokens})
        cross_check(pair[0], PlainDraft(pair[1], 32), _stored(pair[0]), changed, [])

    assert used[0] == used[1]


def test_where_rounds_start() -> None:
    """A round ends after the first rejected token, or one token past gamma accepted ones."""
    a_T = np.array([1, 1, 0, 1, 1, 1, 1, 0, 0, 1], dtype=np.float64)

    assert [0, 3, 6, 8, 9] == round_starts(a_T, 2)
    assert [0, 3, 8, 9] == round_starts(a_T, 5)
    assert [0, 2, 3, 5, 7, 8, 9] == round_starts(np.array([1, 0, 0, 1, 1, 1, 1, 0, 0, 1.0]), 1)
    assert [0, 3, 4] == decoded_starts(Completion(accepted=[2, 0, 5]))


def test_in_lower_precision_the_number_of_rounds_must_still_agree(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode that takes far more rounds than predicted is a broken engine or draft, whatever the precision."""
    target, draft = (model.bfloat16() for model in pair)
    stored = _stored(target)
    assert cross_check(target, PlainDraft(draft, 32), stored, settings(12), []).agrees
    monkeypatch.setattr("pipeline.examination.cross_check.round_starts", lambda a_T, gamma: [0])
    found = cross_check(target, PlainDraft(draft, 32), stored, settings(12), [])
    assert (False, False) == (found.exact_arithmetic, found.agrees)
