"""Completions as sequences that hold little of each: for a training, which reads them in any order.

Of each completion some 150 bytes are in memory: where its tokens are, and what completions are chosen, counted and packed by
(`column`). Prompts and tokens stay in the files, which are memory-mapped: the system's file cache holds what was read of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from pipeline.generation.completion_store import StoredCompletion, TokenColumns, samplings_of, selected_rows
from pipeline.speculation.settings import Sampling

_DTYPES: Mapping[str, Any] = {
    "shard": np.int32,
    "first": np.int64,
    "total": np.int32,
    "prompt_first": np.int32,
    "prompt_length": np.int32,
    "length": np.int32,
    "stopped": np.bool_,
    "id": "S1",  # UTF-8, as wide as the longest
    "text_id": "S1",
    "conversation": "S1",
    "split": np.int32,  # these are places in `words`
    "domain": np.int32,
    "mode": np.int32,
    "sampling": np.int32,
}
_JOINED = 64  # shards whose columns are joined at once: arrays of one shard would take more than what they hold
_NAMES, _WORDS = ("id", "text_id", "conversation"), ("split", "domain", "mode")


@dataclass(frozen=True, eq=False)
class _Shard:
    """Views of a shard's mapped files."""

    tokens: TokenColumns
    prompts: NDArray[np.int32]  # all of them, one after the other


@dataclass(frozen=True, eq=False)
class _Table:
    """N rows of the shards."""

    shards: Sequence[_Shard]
    columns: Mapping[str, NDArray[Any]]  # N each
    words: Mapping[str, Sequence[Any]]


class StoredCompletions(Sequence[StoredCompletion]):
    """Completions of a directory. Each is made when it is asked for; its arrays are views of the mapped files."""

    def __init__(self, table: _Table, places: NDArray[np.int32]) -> None:
        self._table, self._places = table, places

    @classmethod
    def open(
        cls, directory: Path, splits: Collection[str] | None = None, sampling: Sampling | None = None
    ) -> "StoredCompletions":
        """The completions that `read_completions` reads, in its order. Raises as it does, for every shard at once. The files are
        mapped here: one that is replaced or deleted afterwards is read as it was."""
        shards, parts = list[_Shard](), {name: [np.zeros(0, dtype)] for name, dtype in _DTYPES.items()}
        words: dict[str, dict[Any, int]] = {name: {} for name in (*_WORDS, "sampling")}
        for path, batch, rows in selected_rows(directory, splits, sampling):
            if not len(rows):
                continue
            for name, values in _columns(batch, rows, words).items():
                parts[name].append(values)
            parts["shard"].append(np.full(len(rows), len(shards), np.int32))
            shards.append(_Shard(TokenColumns(path), batch["prompt"].values.to_numpy()))
            if len(shards) % _JOINED == 0:
                parts = {name: [_concatenated(values, name)] for name, values in parts.items()}
        columns = {name: _concatenated(parts.pop(name), name) for name in _DTYPES}
        table = _Table(shards, columns, {name: list(values) for name, values in words.items()})
        return cls(table, np.arange(len(columns["shard"]), dtype=np.int32))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> StoredCompletion: ...
    @overload
    def __getitem__(self, place: slice) -> "StoredCompletions": ...
    def __getitem__(self, place: int | slice) -> "StoredCompletion | StoredCompletions":
        if isinstance(place, slice):
            return StoredCompletions(self._table, self._places[place])
        return self._completion(self._places[place])

    def __iter__(self) -> Iterator[StoredCompletion]:
        return map(self._completion, self._places)

    def select(self, places: ArrayLike) -> "StoredCompletions":
        """The completions at these places, in their order; a place may occur several times."""
        return StoredCompletions(self._table, self._places[np.asarray(places, dtype=np.intp)])

    def column(self, name: str) -> NDArray[Any]:
        """See the function `column`."""
        values_N: NDArray[Any] = self._table.columns[name][self._places]
        if name in _WORDS:
            values_N = np.array([word.encode() for word in self._table.words[name]] or [b""])[values_N]
        return values_N

    def _completion(self, row: np.int32) -> StoredCompletion:
        columns, words = self._table.columns, self._table.words
        shard: _Shard = self._table.shards[columns["shard"][row]]
        begin = columns["prompt_first"][row]
        return shard.tokens.completion(
            first=int(columns["first"][row]),
            total=int(columns["total"][row]),
            prompt=shard.prompts[begin : begin + columns["prompt_length"][row]],
            length=int(columns["length"][row]),
            stopped=bool(columns["stopped"][row]),
            **{name: columns[name][row].decode() for name in _NAMES},
            **{name: values[columns[name][row]] for name, values in words.items()},
        )


class Joined(Sequence[StoredCompletion]):
    """The completions of several sequences, one after the other."""

    def __init__(self, *parts: Sequence[StoredCompletion]) -> None:
        self._parts, self._ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, place: int) -> StoredCompletion: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredCompletion]: ...
    def __getitem__(self, place: int | slice) -> StoredCompletion | Sequence[StoredCompletion]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        part = bisect_right(self._ends, number)
        return self._parts[part][number - self._ends[part]]  # counted from the part's end

    def column(self, name: str) -> NDArray[Any]:
        """See the function `column`."""
        return np.concatenate([column(part, name) for part in self._parts])


def column(completions: Sequence[StoredCompletion], name: str) -> NDArray[Any]:
    """A column of N completions in memory or in files, (N,): `id`, `text_id`, `conversation`, `domain` and `mode` as UTF-8;
    `length` and `prompt_length`, in tokens."""
    if isinstance(completions, StoredCompletions | Joined):
        return completions.column(name)
    if not len(completions):
        return np.zeros(0, "S1" if name in _WORDS else _DTYPES[name])
    return np.array([_VALUES[name](item) for item in completions])


def distinct(completions: Sequence[StoredCompletion], name: str) -> frozenset[str]:
    """The names in a column."""
    return frozenset(value.decode() for value in np.unique(column(completions, name)).tolist())


def chosen(completions: Sequence[StoredCompletion], places: NDArray[np.intp]) -> Sequence[StoredCompletion]:
    """The completions at these places, in their order."""
    if isinstance(completions, StoredCompletions):
        return completions.select(places)
    return [completions[place] for place in places.tolist()]


def _encoded(name: str) -> Callable[[StoredCompletion], bytes]:
    return lambda item: str(getattr(item, name)).encode()


_VALUES: Mapping[str, Callable[[StoredCompletion], Any]] = {
    **{name: _encoded(name) for name in (*_NAMES, *_WORDS)},
    "length": lambda item: item.length,
    "prompt_length": lambda item: len(item.prompt),
}


def _concatenated(parts: Sequence[NDArray[Any]], name: str) -> NDArray[Any]:
    """The parts in the column's type; names in the width of the longest."""
    return np.concatenate(parts) if name in _NAMES else np.concatenate(parts, dtype=_DTYPES[name])


def _columns(batch: Any, rows: NDArray[np.intp], words: Mapping[str, dict[Any, int]]) -> dict[str, NDArray[Any]]:
    """The columns of these rows of a completion file. New words are added to `words`."""
    begins = batch["prompt"].offsets.to_numpy()
    taken = batch.select([name for name in batch.schema.names if name != "prompt"]).take(pa.array(rows))
    columns = {name: taken[name].to_numpy() for name in ("first", "total", "length")}
    columns["stopped"] = taken["stopped"].to_numpy(zero_copy_only=False)
    columns["prompt_first"], columns["prompt_length"] = begins[rows], np.diff(begins)[rows]
    for name in _NAMES:
        columns[name] = np.array([value.encode() for value in taken[name].to_pylist()])
    values = {name: taken[name].to_pylist() for name in _WORDS} | {"sampling": samplings_of(taken)}
    for name, listed in values.items():
        known = words[name]
        columns[name] = np.array([known.setdefault(value, len(known)) for value in listed])
    return columns
