"""Counts of a decode by the field's names."""

import pytest

from pipeline.speculation.batch import Completion, Seconds
from pipeline.speculation.statistics import count


def _completion(rounds: list[tuple[int, int]], lookahead: int = 0) -> Completion:
    length = sum(accepted + 1 for _, accepted in rounds)
    return Completion(
        list(range(length + lookahead)),
        length,
        False,
        [drafted for drafted, _ in rounds],
        [accepted for _, accepted in rounds],
        Seconds(1.0, 2.0, 3.0, 0.5),
    )


def test_counts_of_two_completions() -> None:
    """Four rounds by hand: 3 of 3, 1 of 3, 0 of 3 accepted, and one that drafted a single token and kept it."""
    found = count([_completion([(3, 3), (3, 1)]), _completion([(3, 0), (1, 1)], lookahead=4)])

    assert (2, 9, 4, 10, 5, 2) == (
        found.completions,
        found.tokens,
        found.rounds,
        found.drafted,
        found.accepted,
        found.rejected,
    )
    assert (3, 1, 1) == found.accepted_at
    assert (4, 3, 3) == found.drafted_at
    assert (1, 2, 0, 1) == found.histogram
    assert 9 / 4 == found.tokens_per_target_call
    assert 1 + 5 / 4 == found.mean_acceptance_length
    assert 0.5 == found.draft_acceptance_rate
    assert 5 / 7 == found.examined_acceptance_rate
    assert 13 == found.seconds.total


def test_plain_decoding_accepts_nothing() -> None:
    """Without drafts rates are 0 and a call yields a token."""
    found = count([_completion([(0, 0)] * 3)])

    assert (1.0, 0.0, 0.0, (3,)) == (
        found.tokens_per_target_call,
        found.draft_acceptance_rate,
        found.examined_acceptance_rate,
        found.histogram,
    )


def test_nothing_decoded_is_an_error() -> None:
    """No completion has no figures."""
    with pytest.raises(ValueError, match="nothing was decoded"):
        count([])
