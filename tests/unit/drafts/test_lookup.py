"""Prompt-lookup: what is looked up, and its segments. Its rounds are counted in `test_text_drafts.py`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import CONVENTIONS, Convention
from pipeline.acceptance.segments import begins
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.examination.examiner import Examiner
from pipeline.speculation.settings import Sampling
from tests.fakes import stored_completion
from tests.lookup_walk import Walk, walk

MOST = 7


Text = tuple[list[int], list[int], list[int]]


def _counts(texts: Sequence[Text], ngram: int, convention: Convention) -> list[PromptCounts]:
    """Of prompts, what was said, and what the target would say after it."""
    settings = EvaluateConfig(convention=convention.name, max_gamma=MOST, gamma=3)
    items = [stored_completion(prompt, [*said, *past], length=len(said)) for prompt, said, past in texts]
    (found,) = Examiner(Sampling(), settings).counts(PromptLookup(ngram), items)
    return found


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
