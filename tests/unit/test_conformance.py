"""What of the conformance suite needs no engine: rounds, near-ties, the likelihood of a text, the repair."""

import numpy as np
import pytest
import torch

from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from tests.conformance.texts import judge, surprise, text
from tests.conformance.vllm_repair import repeat_for_tokens
from tests.conformance.walks import NearTie, Unexplained, explain, walk
from tests.fakes import tiny_llama

VLLM, OPENVINO = CONVENTIONS["vllm"], CONVENTIONS["openvino"]


@pytest.mark.parametrize("convention", [VLLM, OPENVINO], ids=lambda convention: convention.name)
def test_a_walk_has_the_rounds_that_are_expected(convention: Convention) -> None:
    """Where every a_t is 0 or 1, the expectation is what happens."""
    a_BT = (np.random.default_rng(1).random((50, 25)) < 0.6).astype(float)
    for gamma in (1, 3, 5):
        found = expected_rounds(a_BT, np.full(50, 20), gamma, convention)

        assert [len(walk(a_T, 20, gamma, convention, 20)) for a_T in a_BT] == found.rounds_B.tolist()


def test_a_walk_that_is_clipped_emits_no_more_than_there_is() -> None:
    """Near the limit it drafts less; behind an end of sequence nothing is emitted."""
    a_T = np.ones(12)

    assert [6, 1] == walk(a_T, 8, 5, OPENVINO, 8)
    assert [4] == walk(a_T, 5, 5, OPENVINO, 8)
    assert [6, 6] == walk(a_T, 8, 5, VLLM, 8)


def test_another_turn_is_explained_by_a_near_tie_or_not_at_all() -> None:
    """The engine accepted what our draft would not have proposed: fine where the gap is tiny, an error where it is not."""
    a_T = np.array([1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0], dtype=float)
    turned_T = a_T.copy()
    turned_T[5] = 1
    seen = walk(turned_T, 8, 3, VLLM, 8)

    assert [] == explain(a_T, 8, 3, VLLM, 8, walk(a_T, 8, 3, VLLM, 8), lambda position: 1.0)
    assert [NearTie(5, 1e-6)] == explain(a_T, 8, 3, VLLM, 8, seen, lambda position: 1e-6)
    with pytest.raises(Unexplained, match="position 5"):
        explain(a_T, 8, 3, VLLM, 8, seen, lambda position: 1e-3)


def test_the_surprise_of_a_text_tells_whose_it_is() -> None:
    """A target's samples are as likely as they should be; those of a hotter one are not. Chance of failing: 1 in 15,000."""
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
        found[temperature] = surprise(texts, judge(_Sharpened(model), texts))[2]

    assert abs(found[1.0]) < 4
    assert found[3.0] < -10


class _Sharpened:
    """A model whose logits are four times another's: a tiny random one is too near to uniform to tell anything."""

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
