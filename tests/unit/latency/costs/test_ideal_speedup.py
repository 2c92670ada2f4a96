"""What a draft is worth in time: closed forms."""

import pytest

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.latency.costs.ideal_speedup import (
    ForwardTimes,
    acceptance_from_counted,
    break_even_acceptance,
    draft_acceptance_rate,
    from_cost_ratio,
    ideal_speedup,
    rule_of_thumb_tokens,
)


def test_the_textbook_example() -> None:
    """Acceptance 0.8, gamma 5, 50 ms a token, 60 ms to verify six, 5 ms a draft token: 3.69 tokens in 85 ms."""
    times = ForwardTimes({1: 50.0, 6: 60.0}, 5.0)
    omega = (1 - 0.8**6) / (1 - 0.8)

    assert pytest.approx(omega * 50 / 85) == ideal_speedup(omega, 5, times)
    assert pytest.approx(0.1) == times.cost_ratio
    assert 85 == times.round(5)


def test_leviathans_improvement_factor() -> None:
    """With free verification the speedup is Omega / (gamma c + 1), theorem 3.8."""
    times = from_cost_ratio(0.05, gammas=8)

    assert pytest.approx(3.2 / (7 * 0.05 + 1)) == ideal_speedup(3.2, 7, times)


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.3, 0.9])
def test_break_even_is_the_cost_ratio_at_gamma_one(ratio: float) -> None:
    """At gamma 1 and free verification speculation pays iff alpha > c, and no longer block pays below that."""
    times = from_cost_ratio(ratio, 5)

    assert pytest.approx(ratio, abs=1e-5) == break_even_acceptance(times, [1])
    assert pytest.approx(ratio, abs=1e-5) == break_even_acceptance(times, range(1, 6))


def test_some_pairs_never_pay() -> None:
    """A draft as slow as its target has no break-even."""
    assert break_even_acceptance(from_cost_ratio(1.5, 5), range(1, 6)) is None


def test_the_rule_of_thumb_is_the_well_known_one() -> None:
    """5 tokens in 85 ms against one in 50: 2.9 times as fast, where the exact count says 2.2."""
    times = ForwardTimes({1: 50.0, 6: 60.0}, 5.0)

    assert pytest.approx(5.0) == rule_of_thumb_tokens(0.8, 5)
    assert pytest.approx(2.94, abs=0.005) == ideal_speedup(rule_of_thumb_tokens(0.8, 5), 5, times)
    assert pytest.approx(2.17, abs=0.005) == ideal_speedup(iid_tokens_per_call(0.8, 5), 5, times)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_what_engines_count_and_the_acceptance_behind_it(alpha: float) -> None:
    """There and back; the rule of thumb is exact for what is counted."""
    counted = draft_acceptance_rate(alpha, 5)

    assert pytest.approx(alpha, abs=1e-5) == acceptance_from_counted(counted, 5)
    assert pytest.approx(iid_tokens_per_call(alpha, 5)) == rule_of_thumb_tokens(counted, 5)
