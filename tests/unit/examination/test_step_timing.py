"""Seconds of steps in interleaved turns: what is decoded, in which order, and what is counted."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.config.evaluate import SpeedConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.examination import step_timing
from pipeline.examination.step_timing import (
    RoundsInTurn,
    Turns,
    measure_step_times,
    timed_decoder,
    turns_of,
    within_seconds,
)
from pipeline.speculation.batch import Request
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import table_model

TARGET, DRAFT = 1.0, 0.1  # seconds of a pass
REQUESTS = [Request([1], 80, seed) for seed in range(4)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine on which a pass takes TARGET and DRAFT seconds. `calls`: request and draft length of each side."""
    state: dict[str, Any] = {"calls": [], "clock": 0.0}

    class Rounds(RoundsInTurn):
        def seconds(self, length: int, most: int) -> tuple[float, int]:
            state["calls"].append((self.request.seed, length))
            spent = most * (TARGET + length * DRAFT)
            state["clock"] += spent
            return spent, most

    monkeypatch.setattr(step_timing, "RoundsInTurn", Rounds)
    monkeypatch.setattr(step_timing, "perf_counter", lambda: state["clock"])
    return state


def _turns(count: int = 6, steps: int = 64, lengths: tuple[int, ...] = (1, 4)) -> Turns:
    return Turns(requests=REQUESTS, lengths=lengths, steps=steps, count=count)


def test_each_turn_has_the_seconds_of_a_round_of_each_side(machine: dict[str, Any]) -> None:
    """Plain decoding, and every draft length."""
    found = measure_step_times(None, _turns())  # type: ignore[arg-type]
    assert {0: pytest.approx([1.0] * 6), 1: pytest.approx([1.1] * 6), 4: pytest.approx([1.4] * 6)} == found


def test_sides_alternate_on_each_request(machine: dict[str, Any]) -> None:
    """So what else the machine does affects all sides, and none always follows the same one."""
    told: list[int] = []
    measure_step_times(None, _turns(count=3), lambda: told.append(1))  # type: ignore[arg-type]
    calls = [machine["calls"][start : start + 3] for start in range(0, len(machine["calls"]), 3)]
    assert all(len({seed for seed, _ in one}) == 1 and {0, 1, 4} == {length for _, length in one} for one in calls)
    assert {0, 1, 4} == {one[0][1] for one in calls[:3]} == {one[0][1] for one in calls[:12:4]}
    assert 3 == len(told)


REQUEST = 64 + 4 * (1.1 + 1.4)  # seconds of a turn of one request, here without prefills
REQUESTS_OF_TEN = [Request([1], 80, seed) for seed in range(10)]
LEAST = 16 + 2 * (1.1 + 1.4)  # the same with 16 steps


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (9 * 10 * REQUEST, (9, 10, 64)),
        (7.5 * 10 * REQUEST, (7, 10, 64)),  # fewer turns first
        (6 * 9.1 * REQUEST, (6, 9, 64)),  # then fewer requests
        (6 * 8 * REQUEST - 1, (6, 8, 63)),  # then fewer steps
        (6 * 3.5 * LEAST, (6, 3, 16)),
        (1, (6, 1, 16)),
    ],
)
def test_fewer_turns_then_requests_then_steps_where_the_target_is_slow(
    machine: dict[str, Any], seconds: float, expected: tuple[int, int, int]
) -> None:
    """As long as they can, they are enough for a speedup."""
    turns = replace(_turns(9), requests=REQUESTS_OF_TEN)
    found, needed = within_seconds(None, turns, seconds, 0.95)  # type: ignore[arg-type]
    assert expected == (found.count, len(found.requests), found.steps)
    assert (needed is None) == (found.tokens >= 512)
    assert needed is None or needed == pytest.approx(1.25 * 6 * 8 * REQUEST)
    assert REQUESTS_OF_TEN == [*found.requests, *found.further]  # what no turn has room for is left to the check


@pytest.mark.parametrize(("requests", "steps"), [(10, 64), (8, 64), (12, 50), (40, 16), (16, 128), (9, 200)])
def test_the_seconds_that_are_asked_for_are_enough(
    machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, requests: int, steps: int
) -> None:
    """Also where the machine is slower by a fifth when they are given."""
    given = [Request([1], 300, seed) for seed in range(requests)]
    turns = replace(_turns(9), requests=given, steps=steps)
    needed = within_seconds(None, turns, 1, 0.95)[1]  # type: ignore[arg-type]
    assert needed is not None
    fast = step_timing._cost
    for slower in (1.0, 1.2):
        monkeypatch.setattr(step_timing, "_cost", lambda *of, by=slower: _scaled(fast(*of), by))
        found, lacking = within_seconds(None, turns, needed, 0.95)  # type: ignore[arg-type]
        assert lacking is None
        assert found.tokens >= 512
        assert len(found.requests) >= 8


def _scaled(cost: Any, by: float) -> Any:
    return replace(cost, beside=by * cost.beside, step=by * cost.step, rounds=by * cost.rounds)


@pytest.mark.parametrize(("requests", "steps"), [(7, 80), (10, 50)])
def test_seconds_are_not_asked_for_where_they_would_not_help(
    machine: dict[str, Any], requests: int, steps: int
) -> None:
    """With too few prompts, or with fewer tokens than a speedup needs, other settings are at fault."""
    given = [Request([1], 200, seed) for seed in range(requests)]
    assert within_seconds(None, replace(_turns(9), requests=given, steps=steps), 1, 0.95)[1] is None  # type: ignore[arg-type]


class _Sets:
    """Completions of 40 tokens behind two long prompts and four short ones."""

    deployed = Sampling(0.7)

    def read(self, sampling: Sampling) -> Iterator[SimpleNamespace]:
        assert sampling == self.deployed
        tokens = np.full(56, 5)
        return (SimpleNamespace(prompt=np.full(size, size), tokens=tokens, length=40) for size in (3, 40, 39, 4, 60, 5))


def _some(context: int, max_gamma: int = 16) -> Turns:
    sets: Any = _Sets()
    pair: Any = SimpleNamespace(context=context, stop_tokens=[5])
    return turns_of(sets, SpeedConfig(prompts=3, tokens=8), max_gamma, pair)


def test_a_request_begins_in_the_middle_of_a_completion() -> None:
    """The prompt and half of its completion are the context that a step mostly has."""
    found = _some(1000)
    assert [[3] * 3 + [5] * 20, [40] * 40 + [5] * 20] == [list(one.prompt) for one in found.requests[:2]]
    assert (8, 2, (1, 2, 3, 4, 6, 8, 12, 16)) == (found.steps, found.rounds, tuple(found.lengths))
    assert [4, 60, 5] == [one.prompt[0] for one in found.further]


def test_only_requests_with_room_for_the_longest_round_are_decoded() -> None:
    """Here 93 = 39 + 20 + 17 + 17: a round ends at most 16 drafted tokens and one of the target behind the last token."""
    assert [3, 39, 4] == [int(one.prompt[0]) for one in _some(93).requests]
    assert [17] == [one.limit for one in _some(93).requests[1:2]]
    with pytest.raises(
        UnderstudyError, match=r"room for 17 tokens in the context of 40; lower evaluate\.speed\.tokens"
    ):
        _some(40)


def test_lengths_that_are_not_examined_are_not_timed() -> None:
    """Of others nobody knows the tokens per round."""
    assert [1, 2, 3, 4, 5] == list(_some(1000, max_gamma=5).lengths)


def test_a_further_decoding_begins_where_the_limit_is_reached() -> None:
    """Near it a round drafts less, which is not counted: of 7 tokens and a draft that is always right, one round is."""
    model = table_model(8, 1)
    turns = Turns(requests=[Request([1, 2], 7, 0)], lengths=(4,), steps=3, count=2)
    decoder = timed_decoder(model, PlainDraft(model, 8), turns, GREEDY, GREEDY, 8)
    rounds = RoundsInTurn(decoder, turns.requests[0], 4)
    assert [3, 2, 3] == [rounds.seconds(length, most)[1] for length, most in ((0, 3), (4, 2), (0, 3))]
    assert (0.0, 0) == rounds.seconds(7, 2)  # no room for one
    found = measure_step_times(decoder, turns)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())


def test_rounds_of_all_lengths_are_of_one_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first behind a prefill, the first of plain decoding and the first of another length are in no mean: here they take so
    long that one would show."""
    clock = _Clock({0: (1.0, 8), 2: (1.5, 2), 4: (2.0, 2)})
    begun: list[int] = []
    monkeypatch.setattr(step_timing, "Decoding", lambda decoder, requests: begun.append(1) or clock.decoding(decoder))
    turns = Turns(requests=[Request([1], 400, 0)], lengths=(2, 4), steps=64, count=3)
    found = measure_step_times(SimpleNamespace(), turns)  # type: ignore[arg-type]
    assert {0: pytest.approx([1.0] * 3), 2: pytest.approx([1.5] * 3), 4: pytest.approx([2.0] * 3)} == found
    assert 3 == len(begun)  # one in each turn


class _Clock:
    """A decoding of which the first rounds behind a prefill and behind another length are slow. `sides`: seconds of a round, and
    slow rounds, by length."""

    def __init__(self, sides: dict[int, tuple[float, int]]) -> None:
        self.sides = sides

    def decoding(self, decoder: Any) -> Any:
        seconds = SimpleNamespace(total=100.0, prefill=100.0)
        return _Rounds(self.sides, decoder, seconds)


class _Rounds:
    def __init__(self, sides: dict[int, tuple[float, int]], decoder: Any, seconds: Any) -> None:
        self.sides, self.decoder, self.spent = sides, decoder, seconds
        self.completions = [SimpleNamespace(seconds=seconds)]

    def __iter__(self) -> Iterator[SimpleNamespace]:
        last, slow = None, 8
        while True:
            length = self.decoder.length.gamma
            if last not in (None, length):
                slow = max(slow, self.sides[length][1])
            self.spent.total += 50.0 if slow > 0 else self.sides[length][0]
            last, slow = length, slow - 1
            yield SimpleNamespace(drafted=[length])
