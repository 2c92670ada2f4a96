"""What can be done about a decision, from figures made up for the test."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.acceptance.schema import Figure
from pipeline.acceptance.step_times import StepTimes
from pipeline.judgement.rule_result import FAIL, INCONCLUSIVE, PASS, Power, RuleResult, RuleVerdict
from pipeline.judgement.what_now import what_now, without_step_times

POWER = Power(prompts=100, passes={}, refused={}, equal_passes=None, prompts_needed={})


def _line(each: float, verified: float, alpha: float) -> str:
    """The line about speed, of a draft whose token costs `each` steps of plain decoding, and a pass over a round `verified`."""
    rounds = {length: [0.02 * (verified + each * length)] for length in (1, 2, 4)}
    times = StepTimes(device="cpu", prompts=8, tokens=512, plain=[0.02], rounds=rounds)
    examined: Any = SimpleNamespace(
        mean_acceptance_length={length: iid_tokens_per_call(alpha, length) for length in rounds},
        acceptance_rate=Figure(alpha, None, None, 8),
    )
    return what_now([], times, examined, None)[0]


def test_a_draft_that_pays_says_down_to_which_acceptance() -> None:
    """At acceptance 0.8 and 10% a draft token: 4 tokens cost 1.4 steps and give 3.36; 1.4 tokens are given at 0.286."""
    assert (
        "4 draft tokens: a round costs 1.40 steps of plain decoding and gives 3.36 tokens; it pays while the acceptance rate is "
        in (line := _line(0.1, 1.0, 0.8))
    )
    assert line.endswith("above about 0.29 (now 0.80)")
    assert 1.4 == pytest.approx(iid_tokens_per_call(0.2865, 4), abs=0.005)


def test_a_draft_that_does_not_pay_says_what_would() -> None:
    """Its acceptance, or its cost: with 1 draft token that costs half a step, 0.4 is below 0.5."""
    line = _line(0.5, 1.0, 0.4)
    assert line.startswith(
        "no draft length is known to pay on this machine. With 1 draft token: a round costs 1.50 steps"
    )
    assert "it pays from an acceptance rate of about 0.50 on (now 0.40), or with a smaller draft" in line
    assert line.endswith("a draft token costs 50% of a step, and may cost 40%")


def test_no_acceptance_helps_a_draft_that_is_as_slow_as_its_target() -> None:
    line = _line(1.1, 1.0, 0.9)
    assert "no acceptance rate makes a round of more than 2 steps pay: choose a smaller draft" in line


def test_lines_on_step_times_are_known_as_such() -> None:
    """All of them, and no other."""
    of_times = [_line(0.1, 1.0, 0.8), _line(0.5, 1.0, 0.4), _line(1.1, 1.0, 0.9)]
    of_rules = what_now([_rule(FAIL, 0.01, 0.005, 0.03)], None, None, 0.02)
    assert of_rules
    assert of_rules == without_step_times([*of_rules, *of_times])


def _rule(verdict: RuleVerdict, value: float, half: float, threshold: float, power: Power | None = POWER) -> RuleResult:
    figure = Figure(value, value - half, value + half, 100)
    return RuleResult(name="min_gain", verdict=verdict, text="", figure=figure, threshold=threshold, power=power)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (_rule(PASS, 0.03, 0.01, 0.0), []),
        # Twice the distance to the threshold: four times the prompts.
        (_rule(INCONCLUSIVE, 0.01, 0.02, 0.0), ["min_gain: about 4.0 times as many examination prompts decide it"]),
        (_rule(INCONCLUSIVE, 0.0001, 0.02, 0.0), []),
        (_rule(INCONCLUSIVE, -0.01, 0.02, 0.0), []),  # neither is known
        (
            _rule(FAIL, -0.03, 0.02, 0.01),
            ["min_gain lacks 4.00 points, and more prompts would not decide otherwise; twice"],
        ),
        (replace(_rule(FAIL, -0.3, 0.1, 0.0), name="beats_prompt_lookup"), []),  # tokens, not points
    ],
)
def test_rules_that_did_not_pass(rule: RuleResult, said: list[str]) -> None:
    found = what_now([rule], None, None, 0.02)
    assert len(said) == len(found)
    assert all(one.startswith(begin) for one, begin in zip(found, said, strict=True)), found


def test_the_learning_curve_says_whether_more_completions_suffice() -> None:
    short = [_rule(FAIL, -0.01, 0.001, 0.0)]
    ends = {
        None: "; distill.learning_curve measures what more completions would add",
        0.02: "; twice as many completions would add about 2.0 points, which is enough",
        0.005: "; twice as many completions would add about 0.5 points, which is not enough: train longer, or a larger draft",
    }
    for gain, said in ends.items():
        assert what_now(short, None, None, gain)[0].endswith(said)
