"""Domain shares of the training data."""

from collections import Counter

import pytest

from pipeline.distillation.mixing import mix
from pipeline.errors import UsageError
from tests.fakes import stored_completion

SPOKEN = [
    stored_completion([3, 4], [5, 6], name=f"{domain}-{n}", domain=domain)
    for domain, count in (("traffic", 60), ("chat", 20), ("general", 30))
    for n in range(count)
]


def _counts(shares: dict[str, float], seed: int = 0) -> Counter[str]:
    return Counter(item.domain for item in mix(SPOKEN, shares, seed))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, {"traffic": 60, "chat": 20, "general": 30}),
        ({"general": 0.2}, {"traffic": 60, "chat": 20, "general": 20}),
        ({"general": 0.5}, {"traffic": 60, "chat": 20, "general": 80}),
        ({"general": 0.1, "chat": 0.3}, {"traffic": 60, "chat": 30, "general": 10}),
        ({"general": 0.5, "chat": 0.25, "traffic": 0.25}, {"traffic": 15, "chat": 15, "general": 30}),
    ],
    ids=str,
)
def test_shares_are_kept(shares: dict[str, float], expected: dict[str, int]) -> None:
    """Of all training data; domains without a share are complete."""
    assert expected == _counts(shares)


def test_a_repeated_domain_is_repeated_evenly() -> None:
    """Repetition counts of completions differ by at most one."""
    met = Counter(item.id for item in mix(SPOKEN, {"general": 0.5}, 0) if item.domain == "general")

    assert {2, 3} == set(met.values())
    assert 30 == len(met)


def test_what_is_taken_depends_on_the_seed_alone() -> None:
    """A subset of a domain: the same for one seed, another for another."""
    first, again, other = ([item.id for item in mix(SPOKEN, {"general": 0.1}, seed)] for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert len(first) == len(set(first))


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ({"maths": 0.1}, "no train prompt has domain 'maths'; domains are chat, general, traffic"),
        ({"general": 1.0}, "sum to 1, and there are other domains \\(chat, traffic\\)"),
        ({"general": 0.2, "chat": 0.2, "traffic": 0.2}, "sum to 0.6, and there is no other domain"),
    ],
    ids=str,
)
def test_shares_that_cannot_be_kept_are_named(shares: dict[str, float], complaint: str) -> None:
    """One line for each error."""
    with pytest.raises(UsageError, match=complaint):
        mix(SPOKEN, shares, 0)
