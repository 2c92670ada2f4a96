"""Tokens inside a repeated 8-gram."""

import random

import pytest

from pipeline.acceptance.repetition import WIDTH, repetition_mask


def _brute_force(tokens: list[int]) -> list[bool]:
    grams = [tokens[start : start + WIDTH] for start in range(len(tokens) - WIDTH + 1)]
    return [
        any(start <= index < start + WIDTH and grams.count(gram) > 1 for start, gram in enumerate(grams))
        for index in range(len(tokens))
    ]


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [
        ([], 0),
        (list(range(30)), 0),
        ([1] * 8, 0),
        ([1] * 9, 9),
        ([*range(8), 99, *range(8)], 16),
        ([*range(7), 99, *range(7)], 0),
        ([50, *range(4), *range(4), *range(4), 60], 12),
    ],
)
def test_share_of_known_texts(tokens: list[int], looping: int) -> None:
    """No repetition in distinct tokens or in a repeated 7-gram; all occurrences of a repeated 8-gram are marked."""
    assert looping == repetition_mask(tokens).sum()


def test_marks_equal_brute_force() -> None:
    """On random texts with planted repetitions, the mask equals a brute-force count of all 8-grams."""
    generator = random.Random(0)
    for _ in range(40):
        part = [generator.randrange(4) for _ in range(generator.randrange(5, 14))]
        tokens = [*part, *(generator.randrange(4) for _ in range(generator.randrange(6))), *part]
        assert _brute_force(tokens) == repetition_mask(tokens).tolist()
