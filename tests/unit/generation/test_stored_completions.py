"""Completions as a sequence: what is read in any order is what was written, and little of it is in memory."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UnderstudyError
from pipeline.generation import stored_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions, shard_files, write_shard
from pipeline.generation.segment_files import write_segments
from pipeline.generation.stored_completions import Joined, StoredCompletions, chosen, column, distinct
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import plain_values, stored_completion

_SHARD = 3


def _rows(count: int = 8) -> list[StoredCompletion]:
    """Of different lengths, splits, domains, modes, samplings; some with an acceptance."""
    return [
        replace(
            stored_completion(
                range(2, 3 + n % 4),
                range(4, 6 + n % 5),
                name=f"p{n}" + "é" * (n == 3),
                split="dev" if n == 4 else "train",
                domain="chat" if n % 3 else "code",
                greedy=n == 5,
                length=1 + n % 2,
                seed=n,
            ),
            mode="" if n < 6 else "thinking",
        )
        for n in range(count)
    ]


def _write(directory: Path, rows: Sequence[StoredCompletion]) -> None:
    for number, begin in enumerate(range(0, len(rows), _SHARD)):
        write_shard(directory, f"shard-{number:05d}", rows[begin : begin + _SHARD])


def _same(expected: Sequence[StoredCompletion], found: Sequence[StoredCompletion]) -> bool:
    return list(map(plain_values, expected)) == list(map(plain_values, found))


def test_each_is_what_is_read_in_order(tmp_path: Path) -> None:
    """Every field and its type, by place from either end, also of a shard with segments."""
    rows = _rows()
    _write(tmp_path, rows)
    tokens = sum(len(item.tokens) for item in rows[:_SHARD])
    write_segments(tmp_path, "shard-00000", ("answer", "code"), np.arange(tokens, dtype=np.uint8) % 2)
    expected, found = list(read_completions(tmp_path)), StoredCompletions.open(tmp_path)

    assert _same(expected, found)
    assert _same(expected, [found[place] for place in range(len(rows))])
    assert _same(expected, [found[place - len(rows)] for place in range(len(rows))])
    assert _same(expected[::-1], list(reversed(found)))
    for place in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            found[place]


@pytest.mark.parametrize("joined", [1, 2])
def test_columns_that_are_joined_now_and_then_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: int
) -> None:
    """Also where the names of a later shard are longer."""
    monkeypatch.setattr(stored_completions, "_JOINED", joined)
    _write(tmp_path, _rows())

    assert _same(list(read_completions(tmp_path)), StoredCompletions.open(tmp_path))


@pytest.mark.parametrize(
    ("splits", "sampling"), [({"train"}, None), ({"dev"}, Sampling()), (None, GREEDY), ({"examination"}, None)]
)
def test_splits_and_sampling_choose(tmp_path: Path, splits: set[str] | None, sampling: Sampling | None) -> None:
    """As for those that are read in order; none are a sequence too."""
    _write(tmp_path, _rows())
    expected = list(read_completions(tmp_path, splits, sampling))

    assert _same(expected, StoredCompletions.open(tmp_path, splits, sampling))


@pytest.mark.parametrize("cut", [slice(2, 5), slice(None, None, -2), slice(-3, None), slice(5, 2)], ids=str)
def test_slices_are_sequences_of_the_same_kind(tmp_path: Path, cut: slice) -> None:
    """Nothing is read for them."""
    _write(tmp_path, _rows())
    found = StoredCompletions.open(tmp_path)[cut]

    assert isinstance(found, StoredCompletions)
    assert _same(list(read_completions(tmp_path))[cut], found)


def test_what_is_selected_is_selected_from(tmp_path: Path) -> None:
    """Places may repeat, in any order; of a selection they are its own."""
    _write(tmp_path, _rows())
    whole = list(read_completions(tmp_path))
    some = StoredCompletions.open(tmp_path).select([6, 0, 0, -1, 3])

    assert _same([whole[place] for place in (6, 0, 0, 7, 3)], some)
    assert _same([whole[place] for place in (3, 0)], some.select([4, 1]))
    assert _same([whole[place] for place in (7, 3)], some[3:])
    assert 0 == len(some.select([]))
    with pytest.raises(IndexError):
        some.select([5])


@pytest.mark.parametrize("name", ["id", "text_id", "conversation", "domain", "mode", "length", "prompt_length"])
def test_columns_are_those_of_the_completions(tmp_path: Path, name: str) -> None:
    """Of a whole store, of a selection, of several sequences joined, and of a list."""
    _write(tmp_path, _rows())
    stored = StoredCompletions.open(tmp_path)
    for some in (stored, stored[5:1:-1], Joined(stored[:2], list(stored)[3:], stored[:0], []), stored[:0]):
        listed, found = column(list(some), name), column(some, name)
        assert len(some) == len(found)
        assert len(some) == 0 or listed.dtype.kind == found.dtype.kind
        np.testing.assert_array_equal(listed.tolist(), found.tolist())
    if name in ("id", "mode"):
        assert {getattr(item, name) for item in stored} == distinct(stored, name)


def test_sequences_are_joined(tmp_path: Path) -> None:
    """In any position, also from the end."""
    _write(tmp_path, _rows())
    stored = StoredCompletions.open(tmp_path)
    joined = Joined(stored[:3], stored[:0], list(stored[6:]))
    expected = [*stored[:3], *stored[6:]]

    assert _same(expected, joined)
    assert _same([expected[-1], expected[-4]], [joined[-1], joined[-4]])
    assert _same(expected[1:4], joined[1:4])
    assert _same([expected[3], expected[0]], chosen(joined, np.array([3, 0])))
    with pytest.raises(IndexError):
        joined[5]


@pytest.mark.parametrize(("file", "keep"), [(0, None), (0, 0), (0, 7), (0, 300), (1, 0), (1, 7), (1, 300)])
def test_a_damaged_shard_among_others_is_named(tmp_path: Path, file: int, keep: int | None) -> None:
    """Deleted (without its second file there is no shard) or cut short anywhere: before anything is read, in the same words as
    where completions are read in order."""
    _write(tmp_path, _rows())
    path = tmp_path / shard_files("shard-00001")[file]
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnderstudyError) as read:
        list(read_completions(tmp_path))
    with pytest.raises(UnderstudyError) as opened:
        StoredCompletions.open(tmp_path)

    assert str(read.value) == str(opened.value)
    assert f"{path}: missing or damaged completion file" in str(opened.value)


def test_files_that_are_replaced_are_read_as_they_were(tmp_path: Path) -> None:
    """A shard that another process writes again, or that is deleted, changes nothing of what is open."""
    rows = _rows()
    _write(tmp_path, rows)
    expected, found = [plain_values(item) for item in read_completions(tmp_path)], StoredCompletions.open(tmp_path)
    write_shard(tmp_path, "shard-00000", [rows[7], rows[6]])
    for path in tmp_path.glob("shard-00001.*"):
        path.unlink()

    assert expected == [plain_values(item) for item in found]
    assert [rows[7].id, rows[6].id, rows[6].id, rows[7].id] == [item.id for item in StoredCompletions.open(tmp_path)]


def test_prompts_and_tokens_stay_in_the_files(tmp_path: Path) -> None:
    """However long they are, a completion takes some hundred bytes."""
    long = stored_completion(range(2_000), [1] * 500, kept=2, vocabulary=4000)
    count, shard = 2_000, 500
    for number in range(count // shard):
        rows = [replace(long, id=f"{number * shard + n:016x}") for n in range(shard)]
        write_shard(tmp_path, f"shard-{number:05d}", rows)
    del rows
    tracemalloc.start()
    try:
        found = StoredCompletions.open(tmp_path)
        half = found.select(np.arange(0, count, 2))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count // 2 == len(half)
    assert held / count < 200
