"""Tokens per second in interleaved turns: the draft length, and what is not measurable."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.examination import decoding_speed
from pipeline.examination.decoding_speed import Decodes, TimedDraft, measure_speeds, within_seconds
from pipeline.speculation.batch import Request, Seconds
from pipeline.speculation.draft_length import DraftLength, Fixed
from pipeline.speculation.settings import GREEDY
from pipeline.speculation.statistics import Statistics

OMEGA = {1: 1.7, 2: 2.2, 3: 2.5, 4: 2.6, 5: 2.65, 6: 2.67, 8: 2.7}
TARGET, DRAFT = 1.0, 0.1  # seconds of a pass


class FakeDecoder:
    """Takes the seconds that its passes cost; `slow` multiplies those of the draft."""

    def __init__(self, draft: Any | None, length: DraftLength, slow: float) -> None:
        self.draft, self.length, self.slow = draft, length, slow


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine on which a pass takes TARGET and DRAFT seconds. `noise`: by turn; `slow`: by name of the draft."""
    state: dict[str, Any] = {"noise": lambda: 1.0, "slow": {}}

    def decoder(target: Any, draft: Any | None, gamma: int, decodes: Decodes) -> FakeDecoder:
        return FakeDecoder(draft, Fixed(gamma), state["slow"].get(draft, 1.0))

    def turn(one: FakeDecoder, requests: Sequence[Request]) -> tuple[float, Statistics]:
        gamma, rounds, noise = one.length.most, 30, state["noise"]()
        drafting = gamma * DRAFT * one.slow
        seconds = rounds * (TARGET + drafting) * noise
        tokens = round(rounds * (OMEGA[gamma] if gamma else 1.0))
        times = Seconds(draft=rounds * drafting * noise, verify=rounds * TARGET * noise)
        return seconds, Statistics(1, tokens, rounds, rounds * gamma, tokens - rounds, 0, (), (), (), times)

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
