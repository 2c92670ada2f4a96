"""Prompt-lookup: counts with a precomputed index against a fresh search in every round."""

import random

import pytest

from pipeline.acceptance.prompt_lookup import LookupCounts, count_lookup, count_lookup_by_gamma
from pipeline.acceptance.rounds import CONVENTIONS, Convention


def _naive(
    prompt: list[int], said: list[int], gamma: int, longest: int, convention: Convention, lookahead: list[int]
) -> LookupCounts:
    text, rounds, proposed, accepted, rejected = prompt + said, 0, 0, 0, 0
    places = [0] * gamma
    position = len(prompt) + convention.start
    while position < len(text):
        before = text[:position]
        block: list[int] = []
        for n in range(min(longest, position), 0, -1):
            suffix = before[-n:]
            starts = [s for s in range(position - n) if before[s : s + n] == suffix]
            if starts:
                block = before[starts[-1] + n :][:gamma]
                break
        if convention.clipped:
            block = block[: len(text) - position - 1]
        rounds, proposed, stood = rounds + 1, proposed + len(block), 0
        for index, token in enumerate(block):
            known = text + ([] if convention.clipped else lookahead)
            if position + index == len(known):
                break  # further on nobody knows
            if token != known[position + index]:
                rejected += 1
                break
            accepted, stood = accepted + 1, stood + 1
            places[index] += 1
        position += stood + 1
    return LookupCounts(rounds, rounds + convention.prefill_call, proposed, accepted, rejected, tuple(places))


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
@pytest.mark.parametrize("longest", [1, 2, 4])
def test_counts_equal_a_fresh_search_in_every_round(convention: Convention, longest: int) -> None:
    """Random texts over few tokens, so that n-grams repeat: all counts agree for every gamma."""
    generator = random.Random(longest)
    for _ in range(60):
        prompt = [generator.randrange(3) for _ in range(generator.randrange(1, 8))]
        said = [generator.randrange(3) for _ in range(generator.randrange(1, 25))]

        lookahead = [generator.randrange(3) for _ in range(generator.randrange(8))]

        assert [
            _naive(prompt, said, gamma, longest, convention, lookahead) for gamma in (1, 2, 3, 7)
        ] == count_lookup_by_gamma(prompt, said, [1, 2, 3, 7], longest, convention, lookahead)


def test_accepted_tokens_past_the_end_count_without_clipping() -> None:
    """vLLM counts accepted and rejected tokens past the end; clipped conventions draft nothing there."""
    prompt, said = [1, 2, 3, 4, 5, 6], [9, 1, 2, 3]
    free, clipped = Convention("free", 2, False, False), Convention("clipped", 2, True, False)

    assert LookupCounts(1, 1, 4, 4, 0, (1, 1, 1, 1)) == count_lookup(prompt, said, 4, 2, free, [4, 5, 7])
    assert LookupCounts(1, 1, 4, 3, 1, (1, 1, 1, 0)) == count_lookup(prompt, said, 4, 2, free, [4, 8])
    assert LookupCounts(1, 1, 1, 1, 0, (1, 0, 0, 0)) == count_lookup(prompt, said, 4, 2, clipped, [4, 5, 7])


def test_a_suffix_does_not_match_itself() -> None:
    """If no token repeats, nothing is proposed: every round has an empty block."""
    assert LookupCounts(4, 4, 0, 0, 0, (0, 0)) == count_lookup([1, 2], [3, 4, 5, 6], 2, 3, CONVENTIONS["transformers"])


def test_a_repeated_text_is_copied() -> None:
    """After 1 2 3 4 5 1 the block 2 3 is accepted, then the next token 4: three tokens per round."""
    found = count_lookup([1, 2, 3, 4, 5, 1], [2, 3, 4, 5, 1, 2], 2, 3, CONVENTIONS["transformers"])

    assert LookupCounts(2, 2, 4, 4, 0, (2, 2)) == found


def test_a_clipped_block_leaves_room_for_the_correction() -> None:
    """With one token left nothing is drafted; unclipped, the block is drafted."""
    prompt, said = [1, 2, 3, 1, 2], [3]

    assert LookupCounts(1, 1, 0, 0, 0, (0, 0)) == count_lookup(
        prompt, said, 2, 2, Convention("clipped", 0, True, False)
    )
    assert LookupCounts(1, 1, 2, 1, 0, (1, 0)) == count_lookup(prompt, said, 2, 2, Convention("free", 0, False, False))


def test_the_longest_and_then_the_latest_match_is_taken() -> None:
    """The suffix 1 2 has priority over the suffix 2, and the later of two matches is used."""
    assert 1 == count_lookup([1, 2, 7, 1, 2, 8, 2, 9, 1, 2], [8, 0], 1, 2, CONVENTIONS["transformers"]).accepted


@pytest.mark.parametrize(("said", "gamma"), [([], 2), ([1], 0)])
def test_nothing_to_count_is_an_error(said: list[int], gamma: int) -> None:
    """An empty completion and gamma 0."""
    with pytest.raises(ValueError, match="at least"):
        count_lookup([1], said, gamma, 2, CONVENTIONS["user"])
