"""Tokens per round with intervals over prompts."""

import pytest

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.tokens_per_round import tokens_per_round
from tests.fakes import counted


def _table(prompts: int) -> CountTable:
    return CountTable.of(
        [counted(f"p{number}", 50.0 + number % 7, domain="chat" if number % 2 else "code") for number in range(prompts)]
    )


def test_the_values_are_those_of_the_profile() -> None:
    """A ratio of sums over all prompts: of more than one block too."""
    table = _table(1100)
    tally = AcceptanceTally(table.gammas, ())
    tally.add(table)
    expected, found = tally.figures(0.95).mean_acceptance_length, tokens_per_round(table, 0.95)
    assert expected == {gamma: pytest.approx(one.value) for gamma, one in found.items()}
    assert {1100} == {one.prompts for one in found.values()}
    for one in found.values():
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.value <= one.high


def test_few_prompts_have_no_interval_and_none_have_a_token() -> None:
    few, none = (
        tokens_per_round(_table(3), 0.95),
        tokens_per_round(_table(3).select(_table(3).columns["tokens"] < 0), 0.95),
    )
    assert {(None, None)} == {(one.low, one.high) for one in few.values()}
    assert {(1.0, None, 0)} == {(one.value, one.low, one.prompts) for one in none.values()}
