"""First drafts of production beside the prediction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.acceptance.schema import Bounds, Figure
from pipeline.canary.production import State, compare
from pipeline.engines.counts import Counts
from pipeline.export.schema import CounterFigures, Expected, ServedFigures, read_expected
from tests.exports import make_export


@pytest.fixture
def expected(tmp_path: Path) -> Expected:
    """10 drafts a prompt; mean acceptance length 3, at least 2.8 of 100 prompts and 2.95 of 1,000."""
    make_export(tmp_path, "d")
    figures = CounterFigures(
        drafts=400.0,
        accepted=800.0,
        accepted_per_position=[0.8, 0.5, 0.4, 0.2, 0.1],
        mean_acceptance_length=Figure(3.0, 2.9, 3.1, 40),
        fresh_prompts={100: Bounds(2.8, 3.2), 1000: Bounds(2.95, 3.05)},
    )
    return replace(read_expected(tmp_path), deployed=ServedFigures(40, 1600, 0.7, {5: figures}))


def counts(drafts: float, length: float, first: float | None = 0.8, **changes: Any) -> Counts:
    known: dict[str, Any] = {"drafts": drafts, "draft_tokens": 5 * drafts, "accepted": (length - 1) * drafts}
    return Counts(**(known | {"accepted_first": None if first is None else first * drafts} | changes))


@pytest.mark.parametrize(
    ("counted", "state", "said"),
    [
        (counts(999, 1.0), "too_few", "999 drafts of production, of 1000"),
        (counts(1000, 2.9), "as_predicted", "2.900, at least 2.800"),
        (counts(1000, 2.7, first=0.7), "short", "2.700, at least 2.800"),
        (counts(1000, 2.7, first=0.79), "short", "0.790, 0.800 was predicted"),  # at later positions
        (counts(10_000, 2.91, first=0.79), "as_predicted", "0.790, 0.800 was predicted"),  # both within the margin
        (counts(10_000, 2.9, first=0.7), "short", "at least 2.950"),
        (counts(1000, 2.7, first=None), "short", "mean acceptance length"),
        (counts(1000, 2.7, first=0.7, draft_tokens=4000.0), "short", "acceptance of the first draft token 0.700"),
        (counts(1000, 1.2, first=0.8, draft_tokens=4000.0), "as_predicted", "first draft token"),
        (counts(1000, 1.2, first=None, draft_tokens=4000.0), "not_known", "does not count by position"),
        (counts(1000, 4.9, first=0.99), "as_predicted", "4.900"),
        (Counts(drafts=1000.0), "not_known", "do not include the number of accepted drafts"),
        (None, "not_known", "do not include the number of accepted drafts"),
    ],
)
def test_what_production_shows(expected: Expected, counted: Counts | None, state: State, said: str) -> None:
    """Below the interval and, at the first position or at all together, below the margin."""
    found = compare(counted, expected, "d", 0.02)
    assert (state, True) == (found.state, said in found.why), found.why


def test_without_an_export_there_is_no_prediction() -> None:
    """It says what to set."""
    assert "promote.export" in compare(counts(1000, 2.9), None, "d", 0.02).why


def test_an_export_of_another_draft_predicts_nothing(expected: Expected) -> None:
    """A link that was not settled must not ban the champion."""
    found = compare(counts(1000, 1.0, first=0.1), expected, "other", 0.02)
    assert ("not_known", True) == (found.state, "champion settle" in found.why)


@pytest.mark.parametrize(
    ("counted", "state"),
    [
        (counts(1000, 2.0, first=0.5), "otherwise"),
        (counts(1000, 2.05, first=0.51), "otherwise"),
        (counts(1000, 2.0, first=0.5, draft_tokens=4000.0), "otherwise"),  # by first tokens alone
        (counts(1000, 2.0, first=None), "otherwise"),
        (counts(1000, 2.5, first=0.5), "short"),  # as neither way
        (counts(1000, 2.0, first=0.4), "short"),
        (counts(1000, 3.0), "as_predicted"),
        (counts(999, 2.0, first=0.5), "too_few"),
    ],
)
def test_the_other_way_of_drafting_is_told(expected: Expected, counted: Counts, state: State) -> None:
    """By its own prediction, where the counters are not those of the export's."""
    known = replace(expected, other_drafting=_worse(expected), draft_sampling="probabilistic")
    assert state == compare(counted, known, "d", 0.02).state


def test_a_better_way_of_drafting_than_exported_is_told(expected: Expected) -> None:
    """Nothing falls short, and it is not what was exported all the same."""
    known = replace(expected, deployed=_worse(expected), other_drafting=expected.deployed, draft_sampling="greedy")
    found = compare(counts(1000, 3.0), known, "d", 0.02)
    assert ("otherwise", True) == (found.state, "tokens are chosen by sampling, and the export has" in found.why)
    assert "as_predicted" == compare(counts(1000, 3.0), replace(known, other_drafting=None), "d", 0.02).state


def _worse(expected: Expected) -> ServedFigures:
    """Mean acceptance length 2."""
    figures = replace(
        expected.deployed.by_draft_length[5], accepted=400.0, accepted_per_position=[0.5, 0.2, 0.1, 0.1, 0.1]
    )
    return replace(expected.deployed, by_draft_length={5: figures})
