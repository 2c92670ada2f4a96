"""Tokens per second from step times and examined tokens per round."""

from pathlib import Path

import pytest

from pipeline.acceptance.decoding_speed import Measured
from pipeline.acceptance.step_times import StepTimes, decoding_speed, draft_speed, find_step_times, write_step_times
from pipeline.errors import UnderstudyError

OMEGA = {1: 1.7, 2: 2.2, 3: 2.5, 4: 2.6, 6: 2.67}
TURNS = [1.0, 1.3, 1.0, 1.3, 1.0, 1.3]  # how slow the machine is


def _times(draft: float, turns: list[float] = TURNS) -> StepTimes:
    """A pass of the target takes a second, one of the draft `draft`."""
    rounds = {length: [(1 + length * draft) * one for one in turns] for length in OMEGA}
    return StepTimes(device="cpu", prompts=2, tokens=128, plain=turns, rounds=rounds)


@pytest.mark.parametrize(("draft", "best"), [(0.1, 3), (0.2, 2), (0.01, 6)])
def test_a_draft_is_worth_what_its_best_length_gives(draft: float, best: int) -> None:
    """Omega / (1 + cost x length), in each turn: what slows all sides of a turn cancels."""
    found = draft_speed(_times(draft), OMEGA, 0.95)
    expected = OMEGA[best] / (1 + best * draft)
    assert best == found.gamma
    assert found.speedup is not None
    assert pytest.approx((expected,) * 3) == (found.speedup.median, found.speedup.low, found.speedup.high)
    assert pytest.approx((expected / 1.3, expected)) == (found.tokens_per_second.low, found.tokens_per_second.high)


def test_a_better_draft_is_faster_by_its_acceptance_alone() -> None:
    """Of equal shape: equal drafts have equal speedups, whatever the machine did."""
    times, better = _times(0.1), {length: 1.1 * tokens for length, tokens in OMEGA.items()}
    one, other = (draft_speed(times, tokens, 0.95).speedup for tokens in (OMEGA, better))
    assert draft_speed(times, dict(OMEGA), 0.95).speedup == one
    assert one is not None
    assert other is not None
    assert pytest.approx(1.1 * one.median) == other.median


def test_too_few_turns_give_no_speedup() -> None:
    """Nor times that contradict each other: see `speed_of_turns`."""
    found = draft_speed(_times(0.1, TURNS[:5]), OMEGA, 0.95)
    assert (None, "5 turns are too few for a 95% interval; take 6") == (found.speedup, found.not_measurable)


def test_the_conditions_are_those_of_the_turns() -> None:
    """As in the file; tokens per second of plain decoding too."""
    times = _times(0.1)
    candidate = draft_speed(times, OMEGA, 0.95)
    found = decoding_speed(times, candidate, None, 0.95)
    assert ("cpu", 2, 128, 6) == (found.device, found.prompts, found.tokens, found.turns)
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
