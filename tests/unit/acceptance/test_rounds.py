"""Expected rounds: the dynamic programme against enumeration, the iid formula and real decodes."""

import itertools
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.examine import acceptance_probabilities
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds, iid_tokens_per_call
from pipeline.drafts.plain import PlainDraft
from pipeline.speculation.decoder import Decoder, Request
from pipeline.speculation.settings import GREEDY
from tests.fakes import stored_completion, tiny_llama

EVERY = pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)


def _enumerated(a: list[float], length: int, gamma: int, convention: Convention) -> tuple[float, float, list[float]]:
    """Rounds, drafted tokens and accepted tokens by place, over all outcomes of every single acceptance."""
    rounds, proposed, accepted = 0.0, 0.0, [0.0] * gamma
    for stands in itertools.product((False, True), repeat=len(a)):
        weight = float(np.prod([value if stood else 1 - value for value, stood in zip(a, stands, strict=True)]))
        position = convention.start
        while position < length:
            block = min(gamma, length - position - 1) if convention.clipped else gamma
            stood = 0
            while stood < block and stands[position + stood]:
                accepted[stood] += weight
                stood += 1
            rounds, proposed, position = rounds + weight, proposed + weight * block, position + stood + 1
    return rounds, proposed, accepted


@EVERY
@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_counts_equal_enumeration_over_all_outcomes(convention: Convention, gamma: int) -> None:
    """Ragged completions of 1 to 6 tokens: rounds, calls, drafted and accepted tokens are exact."""
    lengths, extra = [6, 1, 3, 2, 5], 0 if convention.clipped else gamma - 1
    a_BT = np.random.default_rng(gamma).random((len(lengths), 6 + extra))
    found = expected_rounds(a_BT, np.array(lengths), gamma, convention)

    for row, length in enumerate(lengths):
        rounds, proposed, accepted = _enumerated(a_BT[row, : length + extra].tolist(), length, gamma, convention)
        assert rounds == pytest.approx(found.rounds_B[row], abs=1e-12)
        assert rounds + convention.prefill_call == pytest.approx(found.calls_B[row], abs=1e-12)
        assert proposed == pytest.approx(found.proposed_B[row], abs=1e-12)
        np.testing.assert_allclose(accepted, found.accepted_BG[row], atol=1e-12)


@EVERY
def test_what_lies_past_the_end_does_not_matter_unless_it_is_drafted(convention: Convention) -> None:
    """Padding changes nothing; an unclipped convention reads exactly gamma - 1 tokens past the end."""
    generator = np.random.default_rng(0)
    a_BT, needed = generator.random((1, 12)), 5 + (0 if convention.clipped else 2)
    other_BT = a_BT.copy()
    other_BT[:, needed:] = 1 - other_BT[:, needed:]
    one, other = (expected_rounds(values, np.array([5]), 3, convention) for values in (a_BT, other_BT))

    assert (one.rounds_B[0], one.accepted_BG.tolist()) == (other.rounds_B[0], other.accepted_BG.tolist())


@pytest.mark.parametrize("gamma", [1, 5, 16])
def test_constant_acceptance_approaches_the_iid_formula(gamma: int) -> None:
    """On a long completion of constant acceptance, tokens per call are Leviathan's equation 1."""
    length, alphas = 6000, [0.0, 0.4, 0.8, 0.95, 1.0]
    a_BT = np.repeat(np.array(alphas)[:, None], length, axis=1)
    found = expected_rounds(a_BT, np.full(len(alphas), length), gamma, CONVENTIONS["transformers"])

    expected = [iid_tokens_per_call(alpha, gamma) for alpha in alphas]
    assert expected == pytest.approx(length / found.calls_B, rel=3e-3)


def test_clipping_changes_what_is_drafted_but_not_the_rounds() -> None:
    """At acceptance 1 and gamma 4, six tokens take two rounds: 4 + 0 drafted if clipped, 4 + 4 if not."""
    a_BT, lengths = np.ones((1, 20)), np.array([6])
    clipped = expected_rounds(a_BT, lengths, 4, Convention("clipped", 0, True, False))
    free = expected_rounds(a_BT, lengths, 4, Convention("free", 0, False, False))

    assert (2, 4, [1, 1, 1, 1]) == (clipped.rounds_B[0], clipped.proposed_B[0], clipped.accepted_BG[0].tolist())
    assert (2, 8, [2, 2, 2, 2]) == (free.rounds_B[0], free.proposed_B[0], free.accepted_BG[0].tolist())


@pytest.mark.parametrize(("batch", "lengths", "gamma"), [(1, [3], 0), (0, [], 2), (2, [3, 0], 2)])
def test_nothing_to_count_is_an_error(batch: int, lengths: list[int], gamma: int) -> None:
    """gamma below 1, no completion at all, and an empty completion."""
    with pytest.raises(ValueError, match="at least"):
        expected_rounds(np.ones((batch, 4)), np.array(lengths, dtype=np.int64), gamma, CONVENTIONS["user"])


def test_too_few_tokens_for_an_unclipped_convention_is_an_error() -> None:
    """vLLM drafts past the end: gamma - 1 further tokens are needed, and one less is refused."""
    expected_rounds(np.ones((1, 7)), np.array([5]), 3, CONVENTIONS["vllm"])
    with pytest.raises(ValueError, match="6 tokens were given, but the convention 'vllm' needs 7"):
        expected_rounds(np.ones((1, 6)), np.array([5]), 3, CONVENTIONS["vllm"])


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    import torch

    target, draft = tiny_llama(21, layers=1), tiny_llama(21, layers=1)
    with torch.no_grad():
        noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(1))
        draft.lm_head.weight += 0.2 * noise
    return target, draft


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
def test_at_temperature_zero_the_forecast_is_the_decode(pair: tuple[Any, Any], gamma: int) -> None:
    """With acceptance 0 or 1 the expected rounds of each completion equal the rounds of the decoder."""
    target, draft = pair
    prompts = [[1, 2, 3], [4], [9, 8, 7, 6, 5], [11, 30]]
    requests = [Request(prompt, 9 + 3 * row, 0) for row, prompt in enumerate(prompts)]
    completions = Decoder(target, PlainDraft(draft, 32), sampling=GREEDY, vocabulary=32, gamma=gamma).decode(requests)
    rows = [stored_completion(r.prompt, c.tokens) for r, c in zip(requests, completions, strict=True)]
    a = acceptance_probabilities(PlainDraft(draft, 32), rows, GREEDY, GREEDY, 64)
    lengths = np.array([len(values) for values in a])
    a_BT = np.zeros((len(a), lengths.max()))
    for row, values in enumerate(a):
        a_BT[row, : len(values)] = values
    found = expected_rounds(a_BT, lengths, gamma, CONVENTIONS["transformers"])

    assert {0.0, 1.0} == set(np.concatenate(a))
    assert [completion.rounds for completion in completions] == found.rounds_B.tolist()


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
def test_no_call_yields_more_than_gamma_and_one(convention: Convention) -> None:
    """Omega cannot exceed gamma + 1 under any convention, also if all tokens are accepted."""
    lengths = np.array([7, 3, 1])
    for value in (0.0, 1.0):
        calls = expected_rounds(np.full((3, 12), value), lengths, 5, convention).calls_B
        assert (lengths <= 6 * calls + 1e-9).all()
