"""Prompt-lookup: examined and decoded as a walk round by round says."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.acceptance.segments import begins
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.examination.cross_check import decoded_starts
from pipeline.examination.examiner import Examiner
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.lookup_walk import Walk, walk

MOST = 7


Text = tuple[list[int], list[int], list[int]]


def _counts(texts: Sequence[Text], ngram: int, convention: Convention) -> list[PromptCounts]:
    """Of prompts, what was said, and what the target would say after it."""
    settings = EvaluateConfig(convention=convention.name, max_gamma=MOST, gamma=3)
    items = [stored_completion(prompt, [*said, *past], length=len(said)) for prompt, said, past in texts]
    (found,) = Examiner(Sampling(), settings).counts(PromptLookup(ngram), items)
    return found


def _random_text(generator: random.Random, *sizes: int) -> Text:
    prompt, said, past = ([generator.randrange(3) for _ in range(size)] for size in sizes)
    return prompt, said, past


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
@pytest.mark.parametrize("ngram", [1, 2, 4])
def test_counts_equal_a_fresh_search_in_every_round(convention: Convention, ngram: int) -> None:
    """Random texts over few tokens, so that n-grams repeat: all counts agree for every gamma, exactly."""
    generator = random.Random(ngram)
    sizes = [(generator.randrange(1, 8), generator.randrange(1, 25), MOST - 1) for _ in range(60)]
    texts = [_random_text(generator, *size) for size in sizes]
    for (prompt, said, past), found in zip(texts, _counts(texts, ngram, convention), strict=True):
        walks = [walk(prompt, said, gamma, ngram, convention, past) for gamma in range(1, MOST + 1)]

        assert [len(one.rounds) for one in walks] == found.rounds
        assert [len(one.rounds) + convention.prefill_call for one in walks] == found.calls
        assert [one.accepted for one in walks] == found.accepted_drafts
        assert [*walks[-1].per_position] == found.per_position
        assert [0.0] * MOST == found.rounds_variance
        assert (walks[2].accepted, walks[2].accepted + walks[2].rejected) == (found.accepted, found.examined)


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
def test_a_round_drafts_as_many_tokens_as_the_text_has(convention: Convention) -> None:
    """`proposed` of expected_rounds: blocks end where the text does, and of a clipped convention before the last token."""
    generator, proposed = random.Random(5), 0
    for _ in range(40):
        prompt, said, past = _random_text(generator, 4, 15, MOST - 1)
        examined = PromptLookup(2).examine(PaddedBatch([stored_completion(prompt, [*said, *past])]), GREEDY, MOST)
        assert examined.drafted is not None
        a_BTP = np.zeros((1, 21, MOST))
        for place in range(MOST):  # token t at place j of the round that starts at t - j
            a_BTP[0, place:, place] = examined.values[0][: 21 - place, place]
        expected = walk(prompt, said, MOST, 2, convention, past).proposed
        found = expected_rounds(a_BTP, np.array([15]), MOST, convention, np.asarray(examined.drafted[0])[None])
        assert expected == found.proposed_B[0]
        proposed += expected
    assert proposed > 200


def test_accepted_tokens_past_the_end_count_without_clipping() -> None:
    """vLLM counts accepted and rejected tokens past the end; clipped conventions draft nothing there."""
    prompt, said = [1, 2, 3, 4, 5, 6], [9, 1, 2, 3]
    past, other = [4, 5, 6, 9, 1, 2], [4, 8, 8, 8, 8, 8]

    def accepted(past: list[int], convention: str) -> float:
        (found,) = _counts([(prompt, said, past)], 2, CONVENTIONS[convention])
        return found.accepted_drafts[3]

    assert 4 == accepted(past, "vllm")
    assert 3 == accepted(other, "vllm")
    assert 1 == accepted(past, "user")


def test_a_suffix_does_not_match_itself() -> None:
    """If no token repeats, nothing is proposed: every round has an empty block."""
    (found,) = _counts([([1, 2], [3, 4, 5, 6], [])], 3, CONVENTIONS["transformers"])

    assert ([4.0] * MOST, 0.0, 0.0) == (found.rounds, found.accepted, found.examined)


def test_the_longest_and_then_the_latest_match_is_taken() -> None:
    """The suffix 1 2 has priority over the suffix 2, and the later of two matches is used."""
    (found,) = _counts([([1, 2, 7, 1, 2, 8, 2, 9, 1, 2], [8, 0], [])], 2, CONVENTIONS["transformers"])

    assert 1.0 == found.accepted_drafts[0]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.8, top_k=5)], ids=str)
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_a_decode_does_what_the_examination_counts(sampling: Sampling, gamma: int) -> None:
    """Given the text that a real decode emitted, its rounds, drafted and accepted tokens are those of the walk, row by row. At
    temperature 0 the text is that of the target alone."""
    target, ngram, limit = tiny_llama(seed=5), 2, 40
    requests = [Request([number, 3, 5, number, 3], limit, number) for number in range(1, 9)]
    decoder = Decoder(target, PromptLookup(ngram), sampling=sampling, vocabulary=32, gamma=gamma)
    decoded = decoder.decode(requests)

    for request, one in zip(requests, decoded, strict=True):
        expected = walk(request.prompt, one.tokens, gamma, ngram, CONVENTIONS["transformers"])
        assert [accepted for _, accepted, _ in expected.rounds][:-1] == one.accepted[:-1]
        assert [start for start, _, _ in expected.rounds] == decoded_starts(one)
        assert expected.proposed == sum(one.drafted)
    if sampling.greedy:
        plain = Decoder(target, None, sampling=GREEDY, vocabulary=32).decode(requests)
        assert [one.tokens for one in plain] == [one.tokens for one in decoded]
        assert sum(sum(one.accepted) for one in decoded) > 60  # it loops, so that there is something to copy


def test_segments_are_those_of_the_walk() -> None:
    """Rounds, emitted, accepted and examined tokens of each segment, and how it begins."""
    generator, names = np.random.default_rng(2), ("answer", "thinking")
    for _ in range(30):
        prompt, said = generator.integers(0, 3, 4).tolist(), generator.integers(0, 3, 20).tolist()
        labels = generator.integers(0, 2, 20)
        item = replace(stored_completion(prompt, said), segments=labels.astype(np.uint8), segment_names=names)
        settings = EvaluateConfig(convention="transformers", max_gamma=4, gamma=2)
        ((row,),) = Examiner(Sampling(), settings).counts(PromptLookup(2), [item])
        walks = [walk(prompt, said, gamma, 2, CONVENTIONS["transformers"]) for gamma in range(1, 5)]
        for label, name in enumerate(names):
            _check_segment(row, name, labels == label, labels, walks)


def _check_segment(row: PromptCounts, name: str, inside: np.ndarray, labels: np.ndarray, walks: list[Walk]) -> None:
    found = row.segments[name]
    for gamma, one in enumerate(walks, 1):
        ends = [*(start for start, _, _ in one.rounds), len(labels)]
        own = [(start, end) for start, end in pairwise(ends) if inside[start]]
        assert len(own) == found.rounds[gamma - 1]
        assert sum(end - start for start, end in own) == found.emitted[gamma - 1]
    accepted_T, examined_T = np.zeros(len(labels)), np.zeros(len(labels))
    for start, accepted, wrong in walks[1].rounds:
        accepted_T[start : start + accepted] = 1
        examined_T[start : start + accepted + wrong] = 1
    assert accepted_T[inside].sum() == found.accepted
    assert examined_T[inside].sum() == found.examined
    assert accepted_T[inside & begins(labels.astype(np.uint8))].sum() == found.begins_accepted
