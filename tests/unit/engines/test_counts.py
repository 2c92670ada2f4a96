"""Counts of speculation: sums, and the acceptance rate that they tell."""

import pytest

from pipeline.engines.counts import Counts


def _counted(rate: float, length: int, drafts: float = 1000.0) -> Counts:
    """The expected counts of drafts of `length` tokens that are accepted with probability `rate` each."""
    accepted = drafts * sum(rate**n for n in range(1, length + 1))
    return Counts(drafts=drafts, draft_tokens=drafts * length, accepted=accepted, tokens=accepted + drafts)


@pytest.mark.parametrize("length", [1, 3, 5, 16])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 0.8, 0.99, 1.0])
def test_the_rate_behind_expected_counts_is_found(rate: float, length: int) -> None:
    """Whatever the draft length: accepted over proposed tokens would differ."""
    assert pytest.approx(rate, abs=1e-9) == _counted(rate, length).examined_acceptance_rate


def test_without_a_number_of_drafts_calls_are_those_of_the_targets_own_tokens() -> None:
    """As llama.cpp's timings have it."""
    counted = _counted(0.7, 3)
    without = Counts(draft_tokens=counted.draft_tokens, accepted=counted.accepted, tokens=counted.tokens)
    assert pytest.approx(0.7, abs=1e-9) == without.examined_acceptance_rate


@pytest.mark.parametrize(
    "counts",
    [
        Counts(),
        Counts(drafts=3.0, tokens=9.0),
        Counts(drafts=0.0, draft_tokens=0.0, accepted=0.0, tokens=5.0),
        Counts(draft_tokens=5.0, accepted=5.0),
        Counts(draft_tokens=5.0, accepted=5.0, tokens=5.0),
    ],
)
def test_what_says_nothing_has_no_rate(counts: Counts) -> None:
    """No drafts, or none that are known."""
    assert counts.examined_acceptance_rate is None


def test_a_sum_has_the_counts_that_both_have() -> None:
    """An unknown count makes an unknown sum."""
    whole = Counts(drafts=2.0, draft_tokens=10.0, accepted=6.0, accepted_first=2.0, tokens=8.0)
    part = Counts(draft_tokens=5.0, accepted=1.0, tokens=3.0)
    assert Counts(draft_tokens=15.0, accepted=7.0, tokens=11.0) == whole + part
