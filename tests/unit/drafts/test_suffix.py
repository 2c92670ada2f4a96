"""Suffix matching: which block follows a text. Its rounds are counted in `test_text_drafts.py`."""

import torch

from pipeline.drafts.loading import DraftOrigin
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.speculation.settings import GREEDY
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion


def _block(text: list[int], most: int = 7, **settings: float) -> list[int]:
    """What is proposed after a text: a completion that is any token, and then another."""
    draft, block = SuffixMatching(SuffixSettings(**settings)), list[int]()
    for _ in range(most):
        for token in range(10):
            item = stored_completion(text, [*block, token])
            if draft.examine(PaddedBatch([item]), GREEDY, most).values[0][0, len(block)]:
                block.append(token)
                break
    return block


def test_the_longest_match_decides() -> None:
    """The suffix 1 2 is followed by 7 once; the suffix 2 alone by 8 twice."""
    text = [1, 2, 7, 3, 2, 8, 4, 2, 8, 1, 2]

    assert [7, 3] == _block(text)
    assert [8] == _block(text, longest_match=1)


def test_the_most_frequent_continuation_is_chosen_and_of_equal_ones_the_latest() -> None:
    """Token by token among the matches that agree so far; where the latest match differs it does not decide."""
    assert [5] == _block([1, 5, 1, 5, 1, 6, 1])
    assert [6] == _block([1, 5, 1, 6, 1])
    assert [5, 3] == _block([1, 5, 2, 1, 5, 3, 1, 6, 1], max_spec_factor=2)


def test_a_block_ends_where_its_probability_is_low() -> None:
    """Of three matches two agree with 5, and one with 5 3."""
    text = [1, 5, 2, 1, 5, 3, 1, 6, 1]

    assert [5, 3, 1] == _block(text, max_spec_factor=3, min_token_prob=1 / 3)
    assert [5] == _block(text, max_spec_factor=3, min_token_prob=0.34)
    assert [] == _block(text, max_spec_factor=3, min_token_prob=0.67)


def test_a_block_is_as_long_as_its_match_allows() -> None:
    """`max_spec_factor` tokens for each matched token, but not past the end of the text."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]

    assert [4, 5, 6] == _block(text)
    assert [4] == _block(text, max_spec_factor=0.5)
    assert [4, 5, 6, 7, 8, 9] == _block(text, max_spec_factor=2)
    assert [4, 5] == _block(text, most=2)
    assert [] == _block([1, 2, 3, 4])


def test_it_is_loaded_by_its_kind() -> None:
    """With vLLM's settings, and without files."""
    source = DraftOrigin(kind="suffix-matching", files=None, dtype="float32", trust_remote_code=False, lookup_ngram=3)
    draft = source.load(torch.device("cpu"))

    assert isinstance(draft, SuffixMatching)
    assert SuffixSettings() == draft.settings
