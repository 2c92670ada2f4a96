"""The counts of many prompts by column: 1 kB a prompt, where objects take ten. numpy only.

A table is a sequence of `PromptCounts`, each made when it is asked for, so that functions take a table or a list. What needs all
prompts reads columns, and selects in place of making a list of some of them. Shapes: N prompts, G draft lengths, M prompts that
have a segment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from sys import intern
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import Floats, Lengths
from pipeline.acceptance.segments import SegmentCounts

BLOCK = 1024  # prompts that are objects at once
_TEXTS = ("id", "conversation", "domain")
_WHOLE, _REAL = ("tokens", "loop_tokens", "prompt_tokens"), ("accepted", "examined", "loop_accepted")
_BY_GAMMA = ("rounds", "calls", "rounds_variance", "accepted_drafts", "per_position")
_BY_BIN = ("accepted_by_output", "accepted_by_context")
_OF_SEGMENT, _OF_SEGMENT_BY_GAMMA = (
    ("tokens", "accepted", "examined", "begins", "begins_accepted"),
    ("rounds", "emitted"),
)


@dataclass(frozen=True)
class Bins:
    """A list of each prompt, of its own length: those of all prompts one after another."""

    values: Floats
    lengths_N: Lengths

    @property
    def starts_N(self) -> Lengths:
        return np.cumsum(self.lengths_N) - self.lengths_N

    def select(self, places: Lengths) -> "Bins":
        lengths, starts = self.lengths_N[places], self.starts_N[places]
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Bins(self.values[np.repeat(starts, lengths) + within], lengths)

    def dense(self, width: int) -> Floats:
        """(N, width), with 0 behind the end of each list."""
        found_NW = np.zeros((len(self.lengths_N), width))
        found_NW[np.arange(width) < self.lengths_N[:, None]] = self.values
        return found_NW


@dataclass(frozen=True)
class SegmentTable:
    """The counts in one segment of the M prompts that have it: `places_M` in the table; columns as in `SegmentCounts`, (M,) or
    (M, G)."""

    places_M: Lengths
    columns: Mapping[str, NDArray[Any]]

    def row(self, number: int) -> SegmentCounts:
        return SegmentCounts(**{name: values[number].tolist() for name, values in self.columns.items()})


@dataclass(frozen=True, eq=False)
class CountTable(Sequence[PromptCounts]):
    """The counts of N prompts by the names of `PromptCounts`. `columns`: the numbers, (N,) or (N, G)."""

    texts: Mapping[str, list[str]]
    columns: Mapping[str, NDArray[Any]]
    bins: Mapping[str, Bins]
    segments: Mapping[str, SegmentTable]

    @classmethod
    def of(cls, counts: Iterable[PromptCounts]) -> "CountTable":
        """The table of these counts; itself if it is one. ValueError for lists of different lengths."""
        if isinstance(counts, cls):
            return counts
        source = iter(counts)
        return cls.joined([_block(rows) for rows in iter(lambda: list(islice(source, BLOCK)), [])] or [_block([])])

    @classmethod
    def joined(cls, parts: Sequence["CountTable"]) -> "CountTable":
        """The prompts of all `parts`, in order. ValueError where they have other draft lengths."""
        if len(parts) == 1:
            return parts[0]
        firsts = np.cumsum([0, *map(len, parts)])
        by_segment = dict[str, list[tuple[int, SegmentTable]]]()
        for first, part in zip(firsts.tolist(), parts, strict=False):
            for name, segment in part.segments.items():
                by_segment.setdefault(name, []).append((first, segment))
        if len({part.columns["rounds"].shape[1] for part in parts}) > 1:
            raise ValueError(_LENGTHS)
        return cls(
            {name: [*chain.from_iterable(part.texts[name] for part in parts)] for name in _TEXTS},
            _concatenated([part.columns for part in parts]),
            {
                name: Bins(
                    np.concatenate([part.bins[name].values for part in parts]),
                    np.concatenate([part.bins[name].lengths_N for part in parts]),
                )
                for name in _BY_BIN
            },
            {
                name: SegmentTable(
                    np.concatenate([first + segment.places_M for first, segment in own]),
                    _concatenated([segment.columns for _, segment in own]),
                )
                for name, own in by_segment.items()
            },
        )

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> PromptCounts: ...
    @overload
    def __getitem__(self, place: slice) -> "CountTable": ...
    def __getitem__(self, place: int | slice) -> "PromptCounts | CountTable":
        if isinstance(place, slice):
            return self.select(np.arange(len(self))[place])
        return next(iter(self.select(np.arange(len(self))[[place]])))

    def __iter__(self) -> Iterator[PromptCounts]:
        for begin in range(0, len(self), BLOCK):
            yield from self[begin : begin + BLOCK]._rows()

    def _rows(self) -> Iterator[PromptCounts]:
        columns = {name: values.tolist() for name, values in self.columns.items()}
        ends = {name: np.cumsum(bins.lengths_N)[:-1] for name, bins in self.bins.items()}
        columns |= {
            name: [values.tolist() for values in np.split(bins.values, ends[name])] for name, bins in self.bins.items()
        }
        columns |= self.texts
        segments: list[dict[str, SegmentCounts]] = [{} for _ in self.ids]
        for name, segment in self.segments.items():
            for number, place in enumerate(segment.places_M.tolist()):
                segments[place][name] = segment.row(number)
        for row in range(len(self)):
            yield PromptCounts(**{name: values[row] for name, values in columns.items()}, segments=segments[row])

    def select(self, places: NDArray[Any]) -> "CountTable":
        """Some prompts: their places, or which of all."""
        if places.dtype == bool and places.all():
            return self
        places_S: Lengths = np.flatnonzero(places) if places.dtype == bool else places
        number_N = np.full(len(self), -1)
        number_N[places_S] = np.arange(len(places_S))
        segments = {}
        for name, segment in self.segments.items():
            kept = np.flatnonzero(number_N[segment.places_M] >= 0)
            if len(kept):
                columns = {column: values[kept] for column, values in segment.columns.items()}
                segments[name] = SegmentTable(number_N[segment.places_M[kept]], columns)
        chosen = places_S.tolist()
        return CountTable(
            {name: [values[place] for place in chosen] for name, values in self.texts.items()},
            {name: values[places_S] for name, values in self.columns.items()},
            {name: bins.select(places_S) for name, bins in self.bins.items()},
            segments,
        )

    def in_domain(self, domain: str) -> "CountTable":
        return self.select(np.array([own == domain for own in self.domains], dtype=bool))

    @property
    def ids(self) -> list[str]:
        return self.texts["id"]

    @property
    def conversations(self) -> list[str]:
        return self.texts["conversation"]

    @property
    def domains(self) -> list[str]:
        return self.texts["domain"]

    @property
    def gammas(self) -> int:
        """The number of draft lengths."""
        return int(self.columns["rounds"].shape[1])


_LENGTHS = "lists of different lengths; each has one entry for each draft length"


def _block(rows: Sequence[PromptCounts]) -> CountTable:
    """A table of a few prompts."""
    by_gamma = {name: [getattr(row, name) for row in rows] for name in _BY_GAMMA}
    by_segment: dict[str, tuple[list[int], list[SegmentCounts]]] = {}
    for place, row in enumerate(rows):
        for name, counts in row.segments.items():
            places, own = by_segment.setdefault(name, ([], []))
            places.append(place)
            own.append(counts)
    of_segments = (
        getattr(counts, name) for _, own in by_segment.values() for counts in own for name in _OF_SEGMENT_BY_GAMMA
    )
    if len({len(column) for column in chain(*by_gamma.values(), of_segments)}) > 1:
        raise ValueError(_LENGTHS)
    gammas = len(rows[0].rounds) if rows else 0
    return CountTable(
        # Interned: profiles to be compared have the same texts.
        {name: [intern(getattr(row, name)) for row in rows] for name in _TEXTS},
        {name: np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in _WHOLE}
        | {name: np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in _REAL}
        | {name: np.array(lists, dtype=np.float64).reshape(len(rows), gammas) for name, lists in by_gamma.items()},
        {
            name: Bins(
                np.array([*chain.from_iterable(getattr(row, name) for row in rows)], dtype=np.float64),
                np.array([len(getattr(row, name)) for row in rows], dtype=np.int64),
            )
            for name in _BY_BIN
        },
        {
            name: SegmentTable(
                np.array(places),
                {
                    column: np.array([getattr(counts, column) for counts in own])
                    for column in (*_OF_SEGMENT, *_OF_SEGMENT_BY_GAMMA)
                },
            )
            for name, (places, own) in by_segment.items()
        },
    )


def _concatenated(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
