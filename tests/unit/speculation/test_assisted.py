"""transformers assisted generation makes exactly the predicted number of target calls."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.examine import acceptance_probabilities
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.drafts.plain import PlainDraft
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY
from tests.benchmarks import assisted
from tests.benchmarks.refpair import counted_calls
from tests.fakes import stored_completion, tiny_llama

PROMPTS, TOKENS, VOCABULARY = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]], 40, 32


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A target in fp64, and a draft that is right often enough and wrong often enough."""
    target, draft = (tiny_llama(11, layers=1) for _ in range(2))
    with torch.no_grad():
        draft.lm_head.weight += 0.08 * torch.randn(
            draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
    return target, draft


@pytest.mark.parametrize("gamma", [1, 8, *(pytest.param(gamma, marks=pytest.mark.long) for gamma in (2, 3, 5))])
def test_target_calls_equal_assisted_generation(pair: tuple[Any, Any], gamma: int) -> None:
    """Greedy, fp64: target calls of transformers, of our decoder and of the examination are equal, for the same text."""
    target, draft = pair
    for prompt in PROMPTS:
        with counted_calls(target) as calls:
            text = assisted.generate(target, draft, gamma, prompt, TOKENS, sample=False)
        decoder = Decoder(target, PlainDraft(draft, VOCABULARY), sampling=GREEDY, vocabulary=VOCABULARY, gamma=gamma)
        (completion,) = decoder.decode([Request(prompt, TOKENS, 0)])
        said = stored_completion(prompt, text, greedy=True)
        (a_T,) = acceptance_probabilities(PlainDraft(draft, VOCABULARY), [said], GREEDY, GREEDY, batch_tokens=4096)
        expected = expected_rounds(a_T[None], np.array([TOKENS]), gamma, CONVENTIONS["transformers"])

        assert text == completion.tokens
        assert len(calls) == completion.rounds == expected.calls_B[0]
        assert 1 < len(calls) < TOKENS


def test_assisted_generation_drafts_gamma_tokens(pair: tuple[Any, Any]) -> None:
    """With a perfect draft, assisted generation drafts gamma tokens per round, however low the confidence of the draft."""
    target, _ = pair
    perfect = tiny_llama(11, layers=1)
    with counted_calls(target) as calls:
        assisted.generate(target, perfect, 4, PROMPTS[0], 40, sample=False)

    assert 8 == len(calls)
