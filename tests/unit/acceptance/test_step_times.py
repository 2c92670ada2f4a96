"""Tokens per second from step times and examined tokens per round."""

from math import exp, hypot, log
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.acceptance.decoding_speed import Measured, SpeedCheck
from pipeline.acceptance.schema import Figure
from pipeline.acceptance.step_times import (
    StepTimes,
    draft_speed,
    find_step_times,
    with_error,
    write_step_times,
)
from pipeline.errors import UnderstudyError
from pipeline.judgement.speed import check_line
from pipeline.store.files import write_json

OMEGA = {1: 1.7, 2: 2.2, 3: 2.5, 4: 2.6, 6: 2.67}
EXACT = {length: Figure(tokens, tokens, tokens, 40) for length, tokens in OMEGA.items()}
TURNS = [1.0, 1.3, 1.0, 1.3, 1.0, 1.3]  # how slow the machine is


def _times(draft: float, turns: list[float] = TURNS, **changes: Any) -> StepTimes:
    """A pass of the target takes a second, one of the draft `draft`."""
    rounds = {length: [(1 + length * draft) * one for one in turns] for length in OMEGA}
    found = {"device": "cpu", "prompts": 8, "tokens": 512, "plain": turns, "rounds": rounds}
    return StepTimes(**{**found, **changes})


@pytest.mark.parametrize(("draft", "best"), [(0.1, 3), (0.2, 2), (0.01, 6)])
def test_a_draft_is_worth_what_its_best_length_gives(draft: float, best: int) -> None:
    """Omega / (1 + cost x length), in each turn: what slows all sides of a turn cancels."""
    found = draft_speed(_times(draft), EXACT, 4000, 0.95)
    expected = OMEGA[best] / (1 + best * draft)
    assert best == found.gamma
    assert found.speedup is not None
    assert pytest.approx((expected,) * 3) == (found.speedup.median, found.speedup.low, found.speedup.high)
    assert pytest.approx((expected / 1.3, expected)) == (found.tokens_per_second.low, found.tokens_per_second.high)


def test_a_better_draft_is_faster_by_its_acceptance_alone() -> None:
    """Of equal shape: equal drafts have equal speedups, whatever the machine did."""
    times = _times(0.1)
    better = {length: Figure(1.1 * one, 1.1 * one, 1.1 * one, 40) for length, one in OMEGA.items()}
    one, other = (draft_speed(times, tokens, 4000, 0.95).speedup for tokens in (EXACT, better))
    assert draft_speed(times, dict(EXACT), 4000, 0.95).speedup == one
    assert one is not None
    assert other is not None
    assert pytest.approx(1.1 * one.median) == other.median


def test_too_few_turns_give_no_speedup() -> None:
    """The line says how many do, and what to set."""
    found = draft_speed(_times(0.1, TURNS[:5]), EXACT, 4000, 0.95)
    assert found.speedup is None
    assert str(found.not_measurable).startswith(
        "5 turns are too few for a 95% interval, 6 are needed. These step times"
    )
    assert str(found.not_measurable).endswith("change evaluate.speed.turns to measure again")


@pytest.mark.parametrize("disturbed", list(OMEGA))
def test_what_is_not_measurable_for_one_draft_is_not_for_another_of_its_shape(disturbed: int) -> None:
    """Whichever lengths are their best, and whichever length was disturbed: one turn of a length took twice its time."""
    times = _times(0.1)
    times.rounds[disturbed][2] *= 2
    short = {length: Figure(one, one, one, 40) for length, one in zip(OMEGA, [1.6, 1.5, 1.4, 1.3, 1.2], strict=True)}
    one, other = (draft_speed(times, tokens, 4000, 0.95) for tokens in (EXACT, short))
    assert one.gamma != other.gamma
    assert (None, None) == (one.speedup, other.speedup)
    assert one.not_measurable == other.not_measurable
    said = f"step times differ by a factor of 2.0 between turns (γ={disturbed}); is something else running?"
    assert str(one.not_measurable).startswith(said)


def test_times_of_the_whole_turn_may_differ() -> None:
    """What slows all sides of a turn cancels, however much it is."""
    assert draft_speed(_times(0.1, [1.0, 4.0] * 3), EXACT, 4000, 0.95).speedup is not None


FEW = "are too few; at least 8 prompts and 512 tokens are needed"


@pytest.mark.parametrize(
    ("changes", "prompts", "tokens", "reason"),
    [
        ({"prompts": 7}, 40, 4000, f"7 prompts with 512 tokens {FEW} in each turn: set evaluate.speed.prompts and "),
        ({"tokens": 511}, 40, 4000, f"8 prompts with 511 tokens {FEW} in each turn"),
        (
            {"prompts": 1, "tokens": 16, "needed_seconds": 1234.5},
            40,
            4000,
            f"1 prompt with 16 tokens {FEW} in each turn: raise evaluate.speed.seconds to about 1,235",
        ),
        ({}, 7, 4000, f"7 prompts with 4,000 tokens {FEW} in the examination: add rows"),
        ({}, 8, 511, f"8 prompts with 511 tokens {FEW} in the examination"),
        ({}, 8, 512, None),
    ],
)
def test_too_little_gives_no_speedup(changes: dict[str, Any], prompts: int, tokens: int, reason: str | None) -> None:
    """Of what was timed, and of what was examined; one line says which, and what to do."""
    per_round = {length: Figure(one.value, one.low, one.high, prompts) for length, one in EXACT.items()}
    found = draft_speed(_times(0.1, **changes), per_round, tokens, 0.95)
    assert (reason is None) == (found.speedup is not None)
    assert (found.not_measurable or "").startswith(reason or "")


def test_no_interval_of_tokens_per_round_gives_none() -> None:
    """An estimate without an error says nothing."""
    found = draft_speed(_times(0.1), {length: Figure(one, None, None, 40) for length, one in OMEGA.items()}, 4000, 0.95)
    assert found.speedup is None
    assert "tokens per round have no interval" in str(found.not_measurable)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_decode_that_contradicts_the_times_gives_none(agrees: bool) -> None:
    """Two kinds of evidence that exclude each other: neither is shown as the speedup, and both numbers are."""
    check = SpeedCheck(
        gamma=3, prompts=8, tokens=520, computed=Measured(1.9, 1.8, 2.0), decoded=Measured(1.2, 1.1, 1.3), agrees=agrees
    )
    found = draft_speed(_times(0.1, check=check), EXACT, 4000, 0.95)
    assert agrees == (found.speedup is not None)
    assert check == found.check
    said = str(found.not_measurable)
    assert agrees or ("gave x1.20, and step times x1.90" in said and said.endswith("turns to measure again"))


def test_what_could_not_be_checked_stands() -> None:
    """Too few tokens contradict nothing."""
    check = SpeedCheck(gamma=3, prompts=8, tokens=20, computed=Measured(1.9, 1.8, 2.0), decoded=None, agrees=True)
    found = draft_speed(_times(0.1, check=check), EXACT, 4000, 0.95)
    assert found.speedup is not None
    assert "not checked by decoding (d, γ=3): 8 prompts with 20 tokens are too few" in check_line(check, "d")


def test_both_errors_are_in_the_interval() -> None:
    """Their logarithms add in squares: of 3% and 4% comes 5%."""
    found = with_error(Measured(1.0, 1 / 1.03, 1.03), Figure(2.0, 2 / 1.04, 2 * 1.04, 40))
    expected = exp(hypot(log(1.03), log(1.04)))  # 1.0503
    assert pytest.approx((1.0, 1 / expected, expected)) == (found.median, found.low, found.high)
    assert Measured(1.0, None, None) == with_error(Measured(1.0, 0.9, 1.1), Figure(2.0, None, None, 3))


def test_the_interval_holds_the_speedup_as_often_as_it_says() -> None:
    """Noise of 2% in tokens per round and of 5% in each of 9 turns: of 2,000 draws fewer than 94% hold it with a chance below
    1 in 1,000."""
    draw, held = Random(0), 0
    for _ in range(2_000):
        turns = [draw.lognormvariate(0, 0.05) for _ in range(9)]
        rounds = {3: [1.3 * draw.lognormvariate(0, 0.05) * one for one in turns]}
        examined = 2.5 * draw.lognormvariate(0, 0.02)
        bounds = Figure(examined, examined / 1.04, examined * 1.04, 40)  # 1.96 standard errors
        found = draft_speed(_times(0.1, turns, rounds=rounds), {3: bounds}, 4000, 0.95).speedup
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 2.5 / 1.3 <= found.high
    assert held / 2_000 > 0.94


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Without a check, and without the draft that was timed."""
    old = {"schema": 1, "device": "cpu", "prompts": 4, "tokens": 256, "plain": [0.1, 0.1], "rounds": {"1": [0.2, 0.2]}}
    write_json(tmp_path / "step_times.json", old)
    found = find_step_times(tmp_path)
    assert found is not None
    assert (None, None, None) == (found.check, found.draft, found.needed_seconds)


def test_the_conditions_are_those_of_the_turns() -> None:
    """As in the file; tokens per second of plain decoding too."""
    times = _times(0.1)
    candidate = draft_speed(times, EXACT, 4000, 0.95)
    found = times.decoding_speed(candidate, None, (40, 4000), 0.95)
    assert ("cpu", 8, 512, 6) == (found.device, found.prompts, found.tokens, found.turns)
    assert (40, 4000) == (found.examined_prompts, found.examined_tokens)
    assert Measured((1 + 1 / 1.3) / 2, 1 / 1.3, 1.0) == found.plain


@pytest.mark.parametrize(
    ("plain", "rounds", "why"),
    [
        ([], {1: []}, "no turns, or no draft lengths"),
        ([0.1], {}, "no turns, or no draft lengths"),
        ([0.1, 0.2], {1: [0.3]}, "as many seconds as in `plain`"),
        ([0.0], {1: [0.3]}, "greater than 0"),
    ],
)
def test_times_that_give_no_speed_are_refused(
    plain: list[float], rounds: dict[int, list[float]], why: str, tmp_path: Path
) -> None:
    """In one line, with what to do."""
    write_step_times(tmp_path, StepTimes(device="cpu", prompts=1, tokens=16, plain=plain, rounds=rounds))
    with pytest.raises(UnderstudyError, match=f"{why}.*; measure them again"):
        find_step_times(tmp_path)
