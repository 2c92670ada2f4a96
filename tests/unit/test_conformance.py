"""The parts of the conformance suite that need no engine: rounds, near-ties, the log-likelihood test, the repair."""

import numpy as np
import pytest
import torch

from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from tests.conformance.deterministic import NearTie, Unexplained, deterministic_rounds, explain
from tests.conformance.texts import log_p_test, text, token_statistics
from tests.conformance.vllm_repair import repeat_for_tokens
from tests.fakes import tiny_llama

VLLM, OPENVINO = CONVENTIONS["vllm"], CONVENTIONS["openvino"]


@pytest.mark.parametrize("convention", [VLLM, OPENVINO], ids=lambda convention: convention.name)
def test_deterministic_rounds_equal_expected_rounds(convention: Convention) -> None:
    """If every a_t is 0 or 1, the expectation is the exact count."""
    a_BT = (np.random.default_rng(1).random((50, 25)) < 0.6).astype(float)
    for gamma in (1, 3, 5):
        found = expected_rounds(a_BT, np.full(50, 20), gamma, convention)

        assert [len(deterministic_rounds(a_T, 20, gamma, convention, 20)) for a_T in a_BT] == found.rounds_B.tolist()


def test_clipped_rounds_end_at_the_limit() -> None:
    """Near the limit fewer tokens are drafted; nothing is emitted after the end of sequence."""
    a_T = np.ones(12)

    assert [6, 1] == deterministic_rounds(a_T, 8, 5, OPENVINO, 8)
    assert [4] == deterministic_rounds(a_T, 5, 5, OPENVINO, 8)
    assert [6, 6] == deterministic_rounds(a_T, 8, 5, VLLM, 8)


def test_a_different_round_is_explained_only_by_a_near_tie() -> None:
    """The engine accepted a token that our draft would not have proposed: allowed at a tiny logit gap, otherwise an error."""
    a_T = np.array([1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0], dtype=float)
    flipped_T = a_T.copy()
    flipped_T[5] = 1
    seen = deterministic_rounds(flipped_T, 8, 3, VLLM, 8)

    assert [] == explain(a_T, 8, 3, VLLM, 8, deterministic_rounds(a_T, 8, 3, VLLM, 8), lambda position: 1.0)
    assert [NearTie(5, 1e-6)] == explain(a_T, 8, 3, VLLM, 8, seen, lambda position: 1e-6)
    with pytest.raises(Unexplained, match="position 5"):
        explain(a_T, 8, 3, VLLM, 8, seen, lambda position: 1e-3)


def test_log_p_detects_texts_of_another_distribution() -> None:
    """Samples of the target pass the log-likelihood test; those at a higher temperature do not. Chance of failing: 1 in
    15,000."""
    model, prompt = tiny_llama(), np.array([1, 2, 3], dtype=np.int32)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for temperature in (1.0, 3.0):
        ids_BT = torch.tensor([prompt.tolist()] * 64)
        for _ in range(16):
            with torch.no_grad():
                p_BV = (4 * model(input_ids=ids_BT).logits[:, -1] / temperature).softmax(-1)
            ids_BT = torch.cat([ids_BT, torch.multinomial(p_BV, 1, generator=generator)], dim=1)
        texts = [text(prompt, row[3:].tolist(), 16) for row in ids_BT]
        found[temperature] = log_p_test(texts, token_statistics(_Sharpened(model), texts))[2]

    assert abs(found[1.0]) < 4
    assert found[3.0] < -10


class _Sharpened:
    """A model with four times the logits of another: a tiny random model is too close to uniform for the test."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, **inputs: object) -> object:
        output = self._model(**inputs)
        output.logits = 4 * output.logits
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_the_repair_repeats_values_of_any_type_in_place(dtype: torch.dtype) -> None:
    """Each request's value once a token, with one value replaced; a request without tokens gets none."""
    values, output = torch.tensor([0, 2, 3]).to(dtype), torch.full((5,), -1).to(dtype)
    repeat_for_tokens(output, values, torch.tensor([2, 2, 5], dtype=torch.int32), 0, 1, 128)

    assert [1, 1, 3, 3, 3] == output.tolist()
