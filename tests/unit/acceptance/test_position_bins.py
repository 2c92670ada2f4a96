"""Acceptance by position: bins at powers of two, against a loop over tokens."""

from collections import defaultdict

import numpy as np
import pytest

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.position_bins import BINS, accepted_by_bin, bin_edges, tokens_before_edges
from pipeline.acceptance.profile import Completions, PromptCounts, count_completions
from pipeline.acceptance.rounds import CONVENTIONS, Acceptance

LENGTHS, PROMPTS = np.array([1, 15, 16, 17, 40, 100, 33]), np.array([1, 15, 16, 300, 24, 2, 64])
DOMAINS = ["chat", "code", "chat", "code", "chat", "code", "code"]


def _a() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.random(length) for length in LENGTHS]


def _bin(position: int) -> int:
    return next(number for number in range(BINS) if position < (16 << number))


def _counts() -> list[PromptCounts]:
    names = [f"p{n}" for n in range(7)]
    completions = Completions(names, names, DOMAINS, PROMPTS, LENGTHS, [np.zeros(n, bool) for n in LENGTHS])
    return count_completions(completions, [Acceptance([a_T]) for a_T in _a()], 2, CONVENTIONS["user"])


def test_the_first_bins_begin_at_powers_of_two() -> None:
    """[0, 16), [16, 32), [32, 64), ...; the last one has no end."""
    assert [(0, 16), (16, 32), (32, 64)] == [bin_edges(n) for n in range(3)]
    assert (2**30, None) == bin_edges(BINS - 1)


@pytest.mark.parametrize("before_B", [np.zeros_like(PROMPTS), PROMPTS], ids=["output", "context"])
def test_every_token_falls_into_one_bin(before_B: np.ndarray) -> None:
    """Tokens and accepted mass of each completion and bin, token by token."""
    a_BT = np.zeros((7, 100))
    for row, values in enumerate(_a()):
        a_BT[row, : len(values)] = values
    places = tokens_before_edges(before_B, LENGTHS)
    found, tokens = accepted_by_bin(a_BT, places), np.diff(places, axis=1)
    for row, values in enumerate(_a()):
        mass, count = np.zeros(BINS), np.zeros(BINS)
        for position, value in enumerate(values, int(before_B[row])):
            mass[_bin(position)] += value
            count[_bin(position)] += 1
        assert count.tolist() == tokens[row].tolist()
        np.testing.assert_allclose(mass, found[row], atol=1e-12)


@pytest.mark.parametrize("name", ["by_output_position", "by_context_length"])
def test_figures_by_position_are_ratios_over_the_prompts_that_reach_it(name: str) -> None:
    """A bin's rate is accepted mass / tokens, its units are the prompts with a token in it; empty bins are omitted."""
    tally = AcceptanceTally(2, ())
    tally.add(_counts())
    found = getattr(tally.figures(0.95), name)
    tokens, mass, prompts = defaultdict(int), defaultdict(float), defaultdict(set)
    for row, values in enumerate(_a()):
        for position, value in enumerate(values, int(PROMPTS[row]) if name == "by_context_length" else 0):
            tokens[_bin(position)] += 1
            mass[_bin(position)] += value
            prompts[_bin(position)].add(row)

    assert [tokens[number] for number in sorted(tokens)] == [entry.tokens for entry in found]
    assert [bin_edges(number)[0] for number in sorted(tokens)] == [entry.start for entry in found]
    for number, entry in zip(sorted(tokens), found, strict=True):
        assert mass[number] / tokens[number] == pytest.approx(entry.acceptance_rate.value)
        assert len(prompts[number]) == entry.acceptance_rate.prompts
    assert int(LENGTHS.sum()) == sum(entry.tokens for entry in found)
