"""Gains of one draft over another on the same prompts, paired by prompt, with intervals. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.intervals import Interval, fewer_units, ratio_gain
from pipeline.acceptance.position_bins import tokens_before_edges
from pipeline.acceptance.profile import PromptCounts
from pipeline.errors import UnderstudyError

Counts = Sequence[PromptCounts]


def acceptance_gain(draft: Counts, base: Counts, confidence: float) -> Interval:
    """Interval of the gain in acceptance rate over the same prompts, paired. UnderstudyError if the prompts differ."""
    ours, theirs = _paired(draft, base)
    return ratio_gain(
        ours.columns["accepted"],
        ours.columns["examined"],
        theirs.columns["accepted"],
        theirs.columns["examined"],
        ours.domains,
        confidence,
        ours.conversations,
    )


def omega_gain(draft: Counts, base: Counts, gamma: int, confidence: float) -> Interval:
    """Interval of the gain in tokens per target call at `gamma`, paired. UnderstudyError if the prompts differ."""
    ours, theirs = _paired(draft, base)
    return ratio_gain(
        ours.columns["tokens"].astype(np.float64),
        ours.columns["calls"][:, gamma - 1],
        theirs.columns["tokens"].astype(np.float64),
        theirs.columns["calls"][:, gamma - 1],
        ours.domains,
        confidence,
        ours.conversations,
    )


def tokens_per_round_ratio(draft: Counts, base: Counts, gamma: int, confidence: float) -> Interval:
    """Interval of the ratio of the tokens per round, 1 + accepted / rounds, at `gamma`, paired. It compares drafts of any kinds.
    UnderstudyError if the prompts differ, ValueError where there is no round."""
    sides = _paired(draft, base)
    rounds_2N = [side.columns["rounds"][:, gamma - 1].astype(np.float64) for side in sides]
    tokens_2N = [
        rounds_N + side.columns["accepted_drafts"][:, gamma - 1]
        for side, rounds_N in zip(sides, rounds_2N, strict=True)
    ]
    if min(rounds_N.sum() for rounds_N in rounds_2N) <= 0:
        raise ValueError("no completion has a round")
    ours, theirs = (tokens_N.sum() / rounds_N.sum() for tokens_N, rounds_N in zip(tokens_2N, rounds_2N, strict=True))
    ratio = float(ours / theirs)
    # Around this ratio, L_c / L_b changes as (L_c - ratio L_b) / L_b does.
    around = ratio_gain(
        tokens_2N[0] / theirs,
        rounds_2N[0],
        tokens_2N[1] / theirs * ratio,
        rounds_2N[1],
        sides[0].domains,
        confidence,
        sides[0].conversations,
    )
    return replace(around, value=ratio, low=ratio + around.low - around.value, high=ratio + around.high - around.value)


def segment_gain(draft: Counts, base: Counts, name: str, confidence: float) -> Interval:
    """`acceptance_gain` within one segment, over the prompts that have it. ValueError where none has."""
    ours, theirs = (counts.segments.get(name) for counts in _paired(draft, base))
    if ours is None or theirs is None or not np.array_equal(ours.places_M, theirs.places_M):
        raise ValueError(f"no prompt has the segment '{name}' on both sides")
    domains, conversations = _texts(CountTable.of(draft), ours.places_M)
    return ratio_gain(
        ours.columns["accepted"].astype(np.float64),
        ours.columns["examined"].astype(np.float64),
        theirs.columns["accepted"].astype(np.float64),
        theirs.columns["examined"].astype(np.float64),
        domains,
        confidence,
        conversations,
    )


def position_gain(draft: Counts, base: Counts, number: int, confidence: float) -> Interval:
    """`acceptance_gain` within one bin of output positions, over the prompts that reach it. ValueError where none does."""
    ours, theirs = _paired(draft, base)
    reached_M = np.flatnonzero(ours.bins["accepted_by_output"].lengths_N > number)
    lengths_M = ours.columns["tokens"][reached_M]
    tokens_M = np.diff(tokens_before_edges(np.zeros_like(lengths_M), lengths_M), axis=1)[:, number].astype(np.float64)
    one_M, other_M = (
        side.bins["accepted_by_output"].values[side.bins["accepted_by_output"].starts_N[reached_M] + number]
        for side in (ours, theirs)
    )
    domains, conversations = _texts(ours, reached_M)
    return ratio_gain(one_M, tokens_M, other_M, tokens_M, domains, confidence, conversations)


def sample_of(counts: Counts) -> tuple[int, int | None]:
    """The number of prompts; and that of independent units, if it is smaller."""
    return len(counts), fewer_units(len(set(CountTable.of(counts).conversations)), len(counts))


def _paired(draft: Counts, base: Counts) -> tuple[CountTable, CountTable]:
    ours, theirs = CountTable.of(draft), CountTable.of(base)
    if ours.ids != theirs.ids or ours.columns["tokens"].tolist() != theirs.columns["tokens"].tolist():
        raise UnderstudyError(
            "the two profiles are not over the same completions in the same order; examine both on one set of completions"
        )
    if not len(ours):
        raise ValueError("a figure needs at least one prompt")
    return ours, theirs


def _texts(counts: CountTable, places_M: NDArray[Any]) -> tuple[list[str], list[str]]:
    """Domains and conversations of some prompts."""
    places = places_M.tolist()
    return [counts.domains[place] for place in places], [counts.conversations[place] for place in places]
