"""Which rows say the same, and which belong together: exact copies, near-duplicates, groups, clusters.

Works on per-row numbers that lie on disk (see `spool.py`); sees no text. Memory is a few integers a row.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.external_sort import CHUNK, RECORD, equal_rows, sorted_records
from pipeline.corpus.minhash import band_keys, rows_per_band, similarity

_BLOCK = 8192  # rows whose signatures are in memory at once: 4 MB


class Forest:
    """Union-find over rows 0 .. n-1; the root of a tree is its first row."""

    def __init__(self, rows: int) -> None:
        self._parent = array("q", range(rows))

    def find(self, row: int) -> int:
        parent = self._parent
        while parent[row] != row:
            parent[row] = parent[parent[row]]  # halve the path as we walk it
            row = parent[row]
        return row

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.find(one), self.find(other)))
        self._parent[second] = first

    def roots(self) -> NDArray[np.int64]:
        """The first row of each row's tree, [rows]."""
        return np.array([self.find(row) for row in range(len(self._parent))], dtype=np.int64)


@dataclass(frozen=True)
class Clusters:
    """`kept` [rows]: the row goes into the corpus; `first` [rows]: the first row of its cluster, kept or not."""

    kept: NDArray[np.bool_]
    first: NDArray[np.int64]
    exact_duplicates: int
    near_duplicates: int


def find_clusters(facts: NDArray[np.void], signatures: NDArray[np.uint32], threshold: float, scratch: Path) -> Clusters:
    """Clusters of `facts` [rows] (fields `id`, `group`) with `signatures` [rows, 128].

    Of exact copies and near-duplicates (estimated Jaccard similarity >= `threshold`, and what is linked by them) the
    first row is kept. A cluster joins them with every row of an equal group, and a row that is dropped still links its
    group: the rest of a conversation must not be trained on when its opening, asked by somebody else, is examined.
    """
    copies = Forest(len(facts))
    for rows in _equal(facts, "id", scratch):
        _join_all(copies, rows)
    distinct = copies.roots() == np.arange(len(facts))
    for rows in equal_rows(sorted_records(_bands(signatures, distinct, threshold), scratch / "bands.bin")):
        _join_similar(copies, rows, signatures[rows], threshold)
    first_copy = copies.roots()
    kept = first_copy == np.arange(len(facts))
    clusters = copies  # groups are added to what is there; `kept` has been read off
    for rows in _equal(facts, "group", scratch):
        _join_all(clusters, rows)
    exact = int((~distinct).sum())
    return Clusters(kept, clusters.roots(), exact, int((~kept).sum()) - exact)


def _join_all(forest: Forest, rows: NDArray[np.int64]) -> None:
    for row in rows[1:].tolist():
        forest.join(int(rows[0]), row)


def _join_similar(forest: Forest, rows: NDArray[np.int64], sketches: NDArray[np.uint32], threshold: float) -> None:
    """Join the pairs that are similar enough. Pairs that are linked already are not compared: with many copies of one
    template this is the difference between a linear and a quadratic number of comparisons."""
    roots = np.array([forest.find(row) for row in rows.tolist()])
    for place in range(len(rows) - 1):
        later = place + 1 + np.flatnonzero(roots[place + 1 :] != roots[place])
        if not len(later):
            continue
        for other in later[similarity(sketches[place], sketches[later]) >= threshold].tolist():
            forest.join(int(rows[place]), int(rows[other]))
            joined = forest.find(int(rows[place]))
            roots[(roots == roots[place]) | (roots == roots[other])] = joined


def _equal(facts: NDArray[np.void], field: str, scratch: Path) -> Iterator[NDArray[np.int64]]:
    def blocks() -> Iterator[NDArray[np.void]]:
        for start in range(0, len(facts), CHUNK):
            block = np.array(facts[start : start + CHUNK])
            rows = np.arange(start, start + len(block), dtype=np.uint64)
            named = block["grouped"] if field == "group" else np.ones(len(block), dtype=bool)
            yield _records(block[field][named], rows[named])

    return equal_rows(sorted_records(blocks(), scratch / f"{field}.bin"))


def _bands(signatures: NDArray[np.uint32], wanted: NDArray[np.bool_], threshold: float) -> Iterator[NDArray[np.void]]:
    rows_in_band = rows_per_band(threshold)
    for start in range(0, len(signatures), _BLOCK):
        rows = start + np.flatnonzero(wanted[start : start + _BLOCK])
        keys = band_keys(signatures[rows], rows_in_band)
        yield _records(keys.ravel(), np.repeat(rows, keys.shape[1]).astype(np.uint64))


def _records(keys: NDArray[np.uint64], rows: NDArray[np.uint64]) -> NDArray[np.void]:
    records = np.empty(len(keys), dtype=RECORD)
    records["key"], records["row"] = keys, rows
    return records
