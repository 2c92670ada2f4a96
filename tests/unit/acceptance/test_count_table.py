"""Counts by column: the same prompts, the same figures and gains, in a tenth of the memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.count_table import BLOCK, CountTable
from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.acceptance.profile_file import read_examination, write_profile
from pipeline.acceptance.schema import FILE
from pipeline.acceptance.segments import SegmentCounts
from pipeline.store.row_files import RowFile
from tests.fakes import counted
from tests.profiles import make_profile


def _segment(tokens: int, gammas: int = 3) -> SegmentCounts:
    return SegmentCounts(
        tokens=tokens,
        accepted=tokens / 3,
        examined=float(tokens),
        rounds=[1.5] * gammas,
        emitted=[2.5] * gammas,
        begins=1,
        begins_accepted=0.25,
    )


def _counts(count: int) -> list[PromptCounts]:
    """Some with bins, some with segments, in two domains; every third of a conversation with its neighbour."""
    return [
        replace(
            counted(f"p{n}", 50.0 + n % 350 / 7, domain="ab"[n % 2], gammas=3, conversation=f"c{n - n % 3 // 2}"),
            accepted_by_output=[n / 3] * (n % 4),
            accepted_by_context=[n / 5] * (n % 3),
            segments={name: _segment(10 + n) for name in ("answer", "tool")[: n % 3]},
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 11, 2 * BLOCK + 5])
def test_a_table_gives_back_its_prompts(count: int) -> None:
    """Number by number, in order, over blocks; and one at a time, as a list does."""
    counts = _counts(count)
    table = CountTable.of(iter(counts))

    assert (count, counts) == (len(table), list(table))
    assert CountTable.of(table) is table
    if count:
        assert (counts[-1], counts[0]) == (table[-1], table[0])
        with pytest.raises(IndexError):
            table[count]


@pytest.mark.parametrize("places", [slice(2, 9), slice(None, None, -1), np.array([7, 1, 4]), np.arange(12) % 3 == 1])
def test_some_prompts_are_those_of_a_list(places: Any) -> None:
    """By places in any order, or by which of all; segments that none of them has are gone."""
    counts = _counts(12)
    table = CountTable.of(counts)
    found = table[places] if isinstance(places, slice) else table.select(places)
    expected = counts[places] if isinstance(places, slice) else [counts[n] for n in np.arange(12)[places]]

    assert expected == list(found)
    assert {name for row in expected for name in row.segments} == set(found.segments)
    assert [row for row in counts if row.domain == "b"] == list(table.in_domain("b"))
    assert [] == list(table.in_domain("c"))


def test_lists_of_other_draft_lengths_are_refused() -> None:
    """In one block, in two, and of a segment."""
    counts = _counts(BLOCK + 1)
    for wrong in (
        replace(counts[1], rounds=[1.0]),
        replace(counts[1], segments={"answer": _segment(3, gammas=2)}),
    ):
        with pytest.raises(ValueError, match="lists of different lengths"):
            CountTable.of([counts[0], wrong])
    with pytest.raises(ValueError, match="lists of different lengths"):
        CountTable.of([*counts[:BLOCK], counted("other", 1.0, gammas=4)])


def test_a_profile_is_read_in_little_memory(tmp_path: Path) -> None:
    """Line by line: 1,000 prompts with two lists of rows take at most 3 kB each, beside a block of objects."""

    def peak(count: int) -> int:
        counts = [replace(row, accepted_by_output=[], accepted_by_context=[]) for row in _counts(count)]
        with RowFile(tmp_path / FILE, ["greedy", "deployed"]) as rows:
            for name in ("greedy", "deployed"):
                rows.add(name, counts_json(counts))
            write_profile(rows, make_profile(counts))
        tracemalloc.start()
        assert count == len(read_examination(tmp_path).counts)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)  # what is set up once
    assert 1_000 * 3_000 > peak(BLOCK + 1_000) - peak(BLOCK)
