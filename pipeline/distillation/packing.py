"""Packing: which documents share a training row. Pure."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class PackedRows(Sequence[list[int]]):
    """The document numbers of each of R rows, which need no list each."""

    documents_N: NDArray[np.int32]  # row by row
    begins: NDArray[np.int32]  # (R + 1,): where a row begins in them

    def __len__(self) -> int:
        return len(self.begins) - 1

    @overload
    def __getitem__(self, row: int) -> list[int]: ...
    @overload
    def __getitem__(self, row: slice) -> list[list[int]]: ...
    def __getitem__(self, row: int | slice) -> list[int] | list[list[int]]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        number = range(len(self))[row]
        documents: list[int] = self.documents_N[self.begins[number] : self.begins[number + 1]].tolist()
        return documents


def single_rows(count: int) -> PackedRows:
    """A row for each document."""
    return PackedRows(np.arange(count, dtype=np.int32), np.arange(count + 1, dtype=np.int32))


def pack_rows(lengths: ArrayLike) -> PackedRows:
    """Document numbers by row, by best-fit decreasing; a row's capacity is the longest document. Documents in a row are masked
    from each other, see `dataset.PackedCompletions.collate`.

    Every document is in exactly one row. Rows are sorted by their first documents, so the result depends only on the lengths.
    """
    lengths_N = np.asarray(lengths, dtype=np.int64)
    capacity, rows = int(lengths_N.max(initial=0)), 0
    row_N = np.zeros(len(lengths_N), dtype=np.int32)
    room: dict[int, array[int]] = {}  # rows by free space
    for document in np.argsort(-lengths_N, kind="stable"):
        length = int(lengths_N[document])
        fitting = next((left for left in range(length, capacity + 1) if room.get(left)), None)
        if fitting is None:
            row, left, rows = rows, capacity, rows + 1
        else:
            row, left = room[fitting].pop(), fitting
        row_N[document] = row
        room.setdefault(left - length, array("i")).append(row)
    return _sorted(row_N)


def _sorted(row_N: NDArray[np.int32]) -> PackedRows:
    """Rows by the row of each document, in the order of their first documents."""
    _, first_R, found_N = np.unique(row_N, return_index=True, return_inverse=True)
    place_N = np.argsort(np.argsort(first_R))[found_N]
    ends_R = np.cumsum(np.bincount(place_N, minlength=len(first_R)))
    return PackedRows(
        np.argsort(place_N, kind="stable").astype(np.int32), np.concatenate([[0], ends_R]).astype(np.int32)
    )
