"""The sampling unit is the conversation: its turns are summed before an interval is made of them."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.gains import acceptance_gain, omega_gain, position_gain, sample_of, segment_gain
from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.acceptance.profile import PromptCounts, shared_conversations
from pipeline.acceptance.ratio_sums import RatioSums
from pipeline.acceptance.schema import counted as counted_text
from pipeline.acceptance.segments import SegmentCounts
from tests.fakes import counted

Floats = NDArray[np.float64]


class Turns(NamedTuple):
    """N turns of simulated sessions: tokens, accepted tokens, and the session of each."""

    tokens_N: Floats
    accepted_N: Floats
    sessions: list[str]

    @property
    def domains(self) -> list[str]:
        return ["code"] * len(self.sessions)


def simulated(generator: np.random.Generator, sessions: int = 60) -> Turns:
    """Sessions of 1 to 12 turns of 20 to 200 tokens. The acceptance rate of a session is 0.7 +- 0.1 (one standard deviation), and
    that of a turn 0.1 around it."""
    turns_S = generator.integers(1, 13, sessions)
    rates_N = np.repeat(generator.normal(0.7, 0.1, sessions), turns_S) + generator.normal(0, 0.1, turns_S.sum())
    tokens_N = generator.integers(20, 201, turns_S.sum()).astype(float)
    names = [f"session {number}" for number, turns in enumerate(turns_S) for _ in range(turns)]
    return Turns(tokens_N, np.clip(rates_N, 0, 1) * tokens_N, names)


def _rate(turns: Turns, conversations: list[str] | None, block: int = 10_000) -> Interval:
    sums = RatioSums(1, shared_conversations(turns.sessions))
    for begin in range(0, len(turns.sessions), block):
        part = slice(begin, begin + block)
        named = None if conversations is None else conversations[part]
        sums.add(turns.accepted_N[part, None], turns.tokens_N[part, None], turns.domains[part], None, named)
    return sums.interval(0, 0.95)


def coverage(repeats: int, seed: int) -> tuple[float, float]:
    """Of 95% intervals of the rate whose units are turns, and of those whose units are sessions."""
    generator, found = np.random.default_rng(seed), np.zeros(2)
    for _ in range(repeats):
        turns = simulated(generator)
        for kind, interval in enumerate((_rate(turns, None), _rate(turns, turns.sessions))):
            found[kind] += interval.low <= 0.7 <= interval.high
    by_turn, by_session = found / repeats
    return float(by_turn), float(by_session)


def test_intervals_over_conversations_cover_and_those_over_turns_do_not() -> None:
    """250 draws of 60 sessions: intervals over sessions cover 0.95 within 0.069 (5 sigma; false alarm 6e-7 for a new seed), and
    intervals over turns less than 0.8."""
    by_turn, by_session = coverage(250, seed=7)

    assert by_turn < 0.8
    assert 0.95 == pytest.approx(by_session, abs=0.069)


def _summed(turns: Turns) -> tuple[Floats, Floats]:
    """Tokens and accepted tokens of each session."""
    _, place_N = np.unique(turns.sessions, return_inverse=True)
    return np.bincount(place_N, turns.tokens_N), np.bincount(place_N, turns.accepted_N)


def _bounds(found: Interval) -> list[float]:
    return [found.value, found.low, found.high, found.error, found.dof, found.skewness]


@pytest.mark.parametrize("block", [1, 9, 10_000])
def test_a_conversation_counts_as_one_prompt_of_its_tokens_and_accepted_tokens(block: int) -> None:
    """Also where its turns come in different blocks, in any order; the interval says how many prompts and units it is over."""
    turns = simulated(np.random.default_rng(3), sessions=20)
    order = np.random.default_rng(4).permutation(len(turns.sessions))
    mixed = Turns(turns.tokens_N[order], turns.accepted_N[order], [turns.sessions[place] for place in order])
    tokens_S, accepted_S = _summed(turns)
    zero_S, domains = np.zeros(20), ["code"] * 20
    expected = ratio_gain(accepted_S, tokens_S, zero_S, tokens_S, domains, 0.95)
    found = _rate(mixed, mixed.sessions, block)

    assert pytest.approx(_bounds(expected), rel=1e-9) == _bounds(found)
    assert (len(order), 20, 20) == (found.prompts, found.conversations, found.units)
    assert (20, None, 20) == (expected.prompts, expected.conversations, expected.units)


def _in_two_domains(seed: int) -> tuple[Turns, list[str], Floats]:
    """Turns of 40 sessions, their domains, and what a baseline accepts of them: 10 sessions are in both domains."""
    turns, generator = simulated(np.random.default_rng(seed), sessions=40), np.random.default_rng(seed + 1)
    sessions = [int(name.split()[1]) for name in turns.sessions]
    domains = [("code", "chat")[(place if number < 10 else number) % 2] for place, number in enumerate(sessions)]
    return turns, domains, turns.accepted_N * generator.uniform(0.8, 1.0, len(sessions))


def test_paired_differences_are_summed_within_a_conversation() -> None:
    """Also over domains: the conversations that are in two are a stratum of their own."""
    turns, domains, base_N = _in_two_domains(5)
    names, place_N = np.unique(turns.sessions, return_inverse=True)
    tokens_S, accepted_S, base_S = (np.bincount(place_N, one) for one in (turns.tokens_N, turns.accepted_N, base_N))
    of_session = [
        {domain for domain, one in zip(domains, turns.sessions, strict=True) if one == name} for name in names
    ]
    strata = [" and ".join(sorted(found)) for found in of_session]
    expected = ratio_gain(accepted_S, tokens_S, base_S, tokens_S, strata, 0.95)
    found = ratio_gain(turns.accepted_N, turns.tokens_N, base_N, turns.tokens_N, domains, 0.95, turns.sessions)

    assert {"chat", "chat and code", "code"} == set(strata)
    assert pytest.approx(_bounds(expected), rel=1e-9) == _bounds(found)
    assert (40, len(place_N)) == (found.conversations, found.prompts)


@pytest.mark.parametrize("block", [7, 10_000])
@pytest.mark.parametrize("domain", [None, "chat", "code"])
def test_sums_of_blocks_know_a_conversation_in_two_domains(domain: str | None, block: int) -> None:
    """Over both domains it is one unit; within one, its part there is."""
    turns, domains, _ = _in_two_domains(9)
    sums = RatioSums(1, shared_conversations(turns.sessions))
    for begin in range(0, len(domains), block):
        part = slice(begin, begin + block)
        sums.add(turns.accepted_N[part, None], turns.tokens_N[part, None], domains[part], None, turns.sessions[part])
    inside_N = np.array([domain in (None, one) for one in domains])
    accepted_N, tokens_N, none_N = (
        one[inside_N] for one in (turns.accepted_N, turns.tokens_N, np.zeros_like(turns.tokens_N))
    )
    named = [
        [one for one, inside in zip(names, inside_N, strict=True) if inside] for names in (domains, turns.sessions)
    ]
    expected = ratio_gain(accepted_N, tokens_N, none_N, tokens_N, named[0], 0.95, named[1])
    found = sums.interval(0, 0.95, domain)

    assert pytest.approx(_bounds(expected), rel=1e-9) == _bounds(found)
    assert (expected.prompts, expected.conversations) == (found.prompts, found.conversations)


def test_a_question_in_two_template_modes_is_one_unit() -> None:
    """Its prompts are of two domains. In 1,000 draws of 60 questions, whose rates in both modes have most variance in common,
    intervals cover 0.95 within 0.035 (5 sigma); with two units a question they cover 0.85."""
    generator, covered, domains = np.random.default_rng(12), 0, ["chat (thinking=false)", "chat (thinking=true)"] * 60
    names = [str(question) for question in range(60) for _ in range(2)]
    tokens_N = np.full(120, 100.0)
    for _ in range(1000):
        rates_N = 0.6 + 0.09 * np.repeat(generator.normal(size=60), 2) + 0.045 * generator.normal(size=120)
        found = ratio_gain(rates_N * 100, tokens_N, 0 * tokens_N, tokens_N, domains, 0.95, names)
        covered += found.low <= 0.6 <= found.high

    assert 0.95 == pytest.approx(covered / 1000, abs=0.049)


def test_conversations_of_one_prompt_change_no_digit() -> None:
    """Neither of a difference nor of a figure, whatever they are called."""
    turns = simulated(np.random.default_rng(8))
    own, base_N = [f"{number}" for number in range(len(turns.sessions))], turns.accepted_N[::-1].copy()
    arguments = (turns.accepted_N, turns.tokens_N, base_N, turns.tokens_N, turns.domains, 0.95)
    alone = turns._replace(sessions=own)

    assert ratio_gain(*arguments) == ratio_gain(*arguments, own)
    assert _rate(alone, None) == _rate(alone, own)
    assert _rate(alone, own).conversations is None


def test_a_turn_that_does_not_count_for_a_figure_changes_nothing() -> None:
    """Neither where it is absent, nor where it has numbers."""
    generator = np.random.default_rng(2)
    accepted_N, tokens_N = generator.uniform(1, 9, 24), generator.uniform(10, 20, 24)
    names, present_N = [f"c{number // 2}" for number in range(24)], np.arange(24) % 4 != 1
    found = []
    for rows in (np.arange(24), np.flatnonzero(present_N)):
        sums = RatioSums(1, set(names))
        chosen = [names[row] for row in rows]
        sums.add(accepted_N[rows, None], tokens_N[rows, None], ["code"] * len(rows), present_N[rows, None], chosen)
        found.append(sums.interval(0, 0.95))
    assert found[0] == found[1]


def _turn(name: str, conversation: str, accepted: float, segment: float) -> PromptCounts:
    counts = SegmentCounts(
        tokens=40, accepted=segment, examined=40.0, rounds=[9.0], emitted=[20.0], begins=1, begins_accepted=0.5
    )
    found = counted(name, accepted, gammas=1, calls=30 + accepted / 4, conversation=conversation)
    return replace(
        found,
        accepted_by_output=[accepted / 5, accepted / 4],
        accepted_by_context=[accepted / 3],
        segments={"thinking": counts, "answer": counts},
    )


def _chats(turns: int, seed: int) -> list[PromptCounts]:
    generator = np.random.default_rng(seed)
    return [
        _turn(f"p{chat}.{turn}", f"c{chat}", float(generator.uniform(50, 90)), float(generator.uniform(10, 30)))
        for chat in range(12)
        for turn in range(turns)
    ]


def test_every_interval_is_over_conversations() -> None:
    """Of each kind of figure and of each kind of gain, while figures keep the number of prompts."""
    ours, theirs = _chats(3, 1), _chats(3, 2)
    tally = AcceptanceTally(1, shared_conversations(item.conversation for item in ours))
    for begin in range(0, len(ours), 5):
        tally.add(ours[begin : begin + 5])
    figures, domains = tally.figures(0.95), tally.domains(1, 0.95)
    thinking = figures.by_segment["thinking"]
    assert figures.by_output_position is not None
    assert figures.by_context_length is not None
    assert thinking.acceptance_of_begins is not None
    found = [
        figures.acceptance_rate,
        figures.tokens_per_target_call[1],
        domains["code"].acceptance_rate,
        domains["code"].tokens_per_target_call[1],
        thinking.acceptance_rate,
        thinking.tokens_per_target_call[1],
        thinking.acceptance_of_begins,
        figures.by_output_position[1].acceptance_rate,
        figures.by_context_length[0].acceptance_rate,
        acceptance_gain(ours, theirs, 0.95).figure,
        omega_gain(ours, theirs, 1, 0.95).figure,
        segment_gain(ours, theirs, "thinking", 0.95).figure,
        position_gain(ours, theirs, 1, 0.95).figure,
        acceptance_gain(ours, ours, 0.95).figure,
    ]

    assert [(36, 12)] * len(found) == [(one.prompts, one.conversations) for one in found]
    assert {36} == {figures.prompts, domains["code"].prompts, thinking.prompts}
    assert (36, 12) == sample_of(ours)
    assert (12, None) == sample_of(ours[::3])


def test_a_figure_without_an_interval_names_its_conversations() -> None:
    ours, theirs = _chats(2, 1)[:6], _chats(2, 2)[:6]
    found = acceptance_gain(ours, theirs, 0.95).figure
    assert (found.low, found.prompts, found.conversations) == (None, 6, 3)


def test_texts_name_conversations_only_where_they_are_not_the_prompts() -> None:
    """Both numbers, since tables count prompts."""
    assert ["1 prompt", "1,200 prompts"] == [counted_text(1, None), counted_text(1200, None)]
    assert "2 prompts of 1 conversation" == counted_text(2, 1)
    assert "60 prompts of 20 conversations" == counted_text(60, 20)
