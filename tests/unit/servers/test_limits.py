"""Limits on what is asked: tokens per second, and tokens in all."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.servers.limits import Budget, BudgetSpent, RateLimit


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), max_size=30), st.integers(1, 300))
def test_a_budget_is_never_exceeded(requests: list[tuple[int, float]], limit: int) -> None:
    """Whatever the requests take of what they reserve, what is spent and reserved stays within it."""
    budget, running, refused = Budget(limit), [], False
    for number, (tokens, share) in enumerate(requests):
        try:
            budget.reserve(tokens)
            running.append((tokens, int(share * tokens)))
        except BudgetSpent:
            refused = True
        if number % 2 and running:
            budget.settle(*running.pop(0))
        assert budget.spent + sum(tokens for tokens, _ in running) <= limit
    assert refused or sum(tokens for tokens, _ in requests) <= limit or budget.spent <= limit


def test_without_a_limit_tokens_are_counted() -> None:
    """For the line of progress."""
    budget = Budget(None)
    budget.reserve(10**9)
    budget.settle(10**9, 7)
    assert 7 == budget.spent


@pytest.mark.parametrize(("rate", "expected"), [(100.0, [0.0, 0.5, 0.7]), (None, [0.0, 0.0, 0.0])])
def test_requests_start_when_those_before_have_used_their_time(
    monkeypatch: pytest.MonkeyPatch, rate: float | None, expected: list[float]
) -> None:
    """50, 20 and 10 tokens at 100 tokens per second: the second starts after 0.5 s, the third 0.2 s later."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def run() -> Any:
        limit = RateLimit(rate)
        for tokens in (50, 20, 10):
            await limit.wait(tokens)

    monkeypatch.setattr("pipeline.servers.limits.now", lambda: 1000.0)
    monkeypatch.setattr("pipeline.servers.limits.asyncio.sleep", sleep)
    asyncio.run(run())
    assert expected == pytest.approx(waited or [0.0, 0.0, 0.0])


def test_a_budget_is_spent_to_the_last_token() -> None:
    """What is exactly left may be reserved, and no more."""
    budget = Budget(10)
    budget.reserve(4)
    budget.reserve(6)
    with pytest.raises(BudgetSpent):
        budget.reserve(1)
