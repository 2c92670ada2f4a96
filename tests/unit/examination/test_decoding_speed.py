"""Tokens per second in interleaved turns: the draft length, and what is not measurable."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.config.evaluate import SpeedConfig
from pipeline.errors import UnderstudyError
from pipeline.examination import decoding_speed
from pipeline.examination.decoding_speed import Decodes, TimedDraft, measure_speeds, some_decodes, within_seconds
from pipeline.speculation.batch import Request, Seconds
from pipeline.speculation.draft_length import DraftLength, Fixed
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.statistics import Statistics

OMEGA = {1: 1.7, 2: 2.2, 3: 2.5, 4: 2.6, 5: 2.65, 6: 2.67, 8: 2.7}
TARGET, DRAFT = 1.0, 0.1  # seconds of a pass


class FakeDecoder:
    """Takes the seconds that its passes cost; `slow` multiplies those of the draft."""

    def __init__(self, draft: Any | None, length: DraftLength, slow: float) -> None:
        self.draft, self.length, self.slow = draft, length, slow


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine on which a pass takes TARGET and DRAFT seconds. `noise`: by turn; `slow`: by name of the draft;
    `full`: share of the draft tokens that are drafted, because rounds near the end are shorter; `rest`: seconds of a round."""
    state: dict[str, Any] = {"noise": lambda: 1.0, "slow": {}, "full": 1.0, "rest": 0.0}

    def decoder(target: Any, draft: Any | None, gamma: int, decodes: Decodes) -> FakeDecoder:
        return FakeDecoder(draft, Fixed(gamma), state["slow"].get(draft, 1.0))

    def turn(one: FakeDecoder, requests: Sequence[Request]) -> tuple[float, Statistics]:
        gamma, rounds, noise = one.length.most, 30, state["noise"]()
        drafted = round(rounds * gamma * state["full"])
        drafting = drafted * DRAFT * one.slow
        seconds = (rounds * (TARGET + state["rest"]) + drafting) * noise
        tokens = round(rounds * (OMEGA[gamma] if gamma else 1.0))
        times = Seconds(draft=drafting * noise, verify=rounds * TARGET * noise, rest=rounds * state["rest"] * noise)
        return seconds, Statistics(1, tokens, rounds, drafted, tokens - rounds, 0, (), (), (), times)

    monkeypatch.setattr(decoding_speed, "_decoder", decoder)
    monkeypatch.setattr(decoding_speed, "_turn", turn)
    return state


def decodes(turns: int = 9) -> Decodes:
    requests = [Request([1], 8, 0), Request([2], 8, 1)]
    return Decodes(
        requests=requests,
        sampling=GREEDY,
        draft_sampling=GREEDY,
        vocabulary=8,
        stop_tokens=(),
        turns=turns,
        confidence=0.95,
    )


def drafts(**sizes: int) -> dict[str, TimedDraft]:
    return {name: TimedDraft(name, size, OMEGA) for name, size in sizes.items()}


def test_a_draft_is_timed_at_its_best_length(machine: dict[str, Any]) -> None:
    """Omega / (1 + 0.1 gamma) is largest at 3: 2.5 / 1.3. A draft of twice the cost is best at 2."""
    machine["slow"] = {"dear": 2.0}

    _, found = measure_speeds(None, drafts(cheap=1, dear=2), decodes())

    assert (found["cheap"].gamma, found["dear"].gamma) == (3, 2)
    assert found["cheap"].speedup is not None
    assert found["cheap"].speedup.median == pytest.approx(2.5 / 1.3)


@pytest.mark.parametrize(("full", "rest", "best"), [(0.3, 0.0, 3), (1.0, 2.0, 4)])
def test_the_best_length_is_that_of_whole_rounds(machine: dict[str, Any], full: float, rest: float, best: int) -> None:
    """Trials are short, so many of their rounds draft less. What a round takes besides the passes favours long ones."""
    machine |= {"full": full, "rest": rest}

    _, found = measure_speeds(None, drafts(draft=1), decodes())

    assert best == found["draft"].gamma


def test_only_examined_lengths_are_tried(machine: dict[str, Any]) -> None:
    """Of others nobody knows the tokens per round."""
    _, found = measure_speeds(None, {"draft": TimedDraft("draft", 1, {1: 1.7, 2: 2.2})}, decodes())
    assert 2 == found["draft"].gamma


def test_a_length_that_is_slower_once_does_not_end_the_search(machine: dict[str, Any]) -> None:
    """Times vary: the longer lengths are left out only after two in a row."""
    dip = {1: 1.7, 2: 2.2, 3: 2.3, 4: 3.2, 5: 3.3, 6: 3.3}

    _, found = measure_speeds(None, {"draft": TimedDraft("draft", 1, dip)}, decodes())

    assert 4 == found["draft"].gamma


def test_each_side_is_first_in_a_third_of_the_turns(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the side before left in the caches helps no side more often than another."""
    order, turn = list[Any](), decoding_speed._turn

    def recorded(one: Any, requests: Sequence[Request]) -> tuple[float, Statistics]:
        order.append(one.draft)
        return turn(one, requests)

    monkeypatch.setattr(decoding_speed, "_turn", recorded)
    measure_speeds(None, drafts(a=1, b=2), decodes(turns=6))

    assert [None, "a", "b"] * 2 == order[-18::3]


class FakeSets:
    """Two long prompts between four short ones."""

    deployed = Sampling(0.7)

    def read(self, sampling: Sampling) -> Iterator[SimpleNamespace]:
        assert sampling == self.deployed
        return (SimpleNamespace(prompt=np.full(size, size)) for size in (3, 40, 39, 4, 60, 5))


def _some(context: int) -> Decodes:
    pair: Any = SimpleNamespace(context=context, vocabulary=9, stop_tokens=(7,))
    sets: Any = FakeSets()
    return some_decodes(sets, SpeedConfig(prompts=3, tokens=8), GREEDY, 0.95, pair)


def test_only_prompts_with_room_for_the_longest_round_are_decoded() -> None:
    """Here 64 = 39 + 8 + 17: a round ends at most 16 drafted tokens and one of the target behind the last token."""
    found = _some(64)

    assert [(3, 8, 0), (39, 8, 1), (4, 8, 2)] == [(len(one.prompt), one.limit, one.seed) for one in found.requests]
    assert (Sampling(0.7), GREEDY) == (found.sampling, found.draft_sampling)
    with pytest.raises(
        UnderstudyError, match=r"leaves room for 8 tokens in the context of 20; lower evaluate\.speed\.tokens"
    ):
        _some(20)


def test_turns_cancel_what_slows_all_sides(machine: dict[str, Any]) -> None:
    """Rates vary by a third from turn to turn of the machine's clock; the speedup hardly does."""
    calls = iter(range(10_000))
    machine["noise"] = lambda: 1.0 + 0.3 * ((next(calls) // 2) % 2)

    plain, found = measure_speeds(None, drafts(only=1), decodes())

    assert plain.high is not None
    assert plain.low is not None
    assert plain.high > 1.25 * plain.low
    assert found["only"].speedup is not None


def test_drafts_of_one_size_that_differ_are_not_measurable(machine: dict[str, Any]) -> None:
    """4 ms against 0.55 for equal shapes says something about the machine, not about the drafts."""
    machine["slow"] = {"base": 7.0}

    _, found = measure_speeds(None, drafts(base=5, candidate=5), decodes())

    assert found["candidate"].speedup is None
    assert str(found["candidate"].not_measurable).startswith(
        "the drafts have the same size, but a draft token took 700.00 ms with the base draft"
    )


def test_drafts_of_one_size_may_differ_by_what_their_lengths_explain(machine: dict[str, Any]) -> None:
    """At one token a round, what a round takes once falls on one token, at three on three: 1.8 times is no contradiction."""
    machine["slow"] = {"base": 1.8}
    base = TimedDraft("base", 5, {1: OMEGA[1]})

    _, found = measure_speeds(None, {"base": base, **drafts(candidate=5)}, decodes())

    assert (found["base"].gamma, found["candidate"].gamma) == (1, 3)
    assert found["candidate"].speedup is not None


def test_a_busy_machine_is_not_measurable(machine: dict[str, Any]) -> None:
    """One side or the other is held up for three times as long."""
    numbers = random.Random(1)
    machine["noise"] = lambda: numbers.choice([1.0, 3.0])

    _, found = measure_speeds(None, drafts(only=1), decodes())

    assert found["only"].speedup is None
    assert str(found["only"].not_measurable).endswith("is something else running?")


@pytest.mark.parametrize(
    ("seconds", "prompts", "tokens"), [(10_000, 4, 64), (28 * 64 * 3, 3, 64), (28 * 40, 1, 40), (1, 1, 16)]
)
def test_fewer_prompts_then_shorter_completions_where_the_target_is_slow(
    machine: dict[str, Any], seconds: float, prompts: int, tokens: int
) -> None:
    """A token takes a second here. One draft needs 28 decodes of a prompt: two sides in 9 turns, and 10 to find its length."""
    wanted = replace(decodes(), requests=[Request([1], 64, seed) for seed in range(4)])

    found = within_seconds(None, wanted, 1, seconds)

    assert (prompts, {tokens}) == (len(found.requests), {request.limit for request in found.requests})


def test_each_turn_is_told(machine: dict[str, Any]) -> None:
    told: list[int] = []
    measure_speeds(None, drafts(only=1), decodes(turns=7), lambda: told.append(1))
    assert 7 == len(told)
