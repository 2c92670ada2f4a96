"""Clusters of rows: exact duplicates, near-duplicates, rows with the same words, of one conversation and of one group.

Works on the hashes and signatures in the row buffer (`row_buffer.py`), not on text. Memory is a few integers per row.
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


class UnionFind:
    """Union-find over rows 0 .. n-1; the root of a set is its first row."""

    def __init__(self, rows: int) -> None:
        self._parent = array("q", range(rows))

    def find(self, row: int) -> int:
        parent = self._parent
        while parent[row] != row:
            parent[row] = parent[parent[row]]  # path halving
            row = parent[row]
        return row

    def join(self, own: int, other: int) -> None:
        first, second = sorted((self.find(own), self.find(other)))
        self._parent[second] = first

    def roots(self) -> NDArray[np.int64]:
        """The first row of each row's set, [rows]."""
        return np.array([self.find(row) for row in range(len(self._parent))], dtype=np.int64)


@dataclass(frozen=True)
class Clusters:
    """The clusters of near-duplicates. `kept` [rows]: whether the row is in the corpus; `first` [rows]: the first row of its
    cluster, kept or not."""

    kept: NDArray[np.bool_]
    first: NDArray[np.int64]
    exact_duplicates: int
    near_duplicates: int


def find_clusters(
    hashes: NDArray[np.void], signatures: NDArray[np.uint32], threshold: float, scratch: Path
) -> Clusters:
    """Clusters of `hashes` [rows] (fields `id`, `text`, `conversation`, `group`, `place`) with `signatures` [rows, 128].

    Of exact duplicates and near-duplicates (estimated Jaccard similarity >= `threshold`, transitively) the first row is kept.
    Near-duplicates are of one place: a later turn of a conversation resembles the turn before, and a question in another template
    mode is the same text, but the target is asked for something else. A cluster joins all rows that are similar, in whichever
    places, with all rows of the same words, of the same conversation, and of the same group. A dropped row still links its group:
    otherwise the rest of a conversation could be in train while its opening, as a duplicate elsewhere, is in examination.
    """
    duplicates = UnionFind(len(hashes))
    for rows in _equal(hashes, "id", scratch):
        _join_all(duplicates, rows)
    distinct = duplicates.roots() == np.arange(len(hashes))
    _join_near(duplicates, signatures, distinct, threshold, hashes["place"], scratch)
    kept = duplicates.roots() == np.arange(len(hashes))
    clusters = duplicates  # the others are joined to the duplicates
    if (hashes["place"] != hashes["place"][:1]).any():
        _join_near(clusters, signatures, kept, threshold, None, scratch)
    for field in ("text", "conversation", "group"):
        for rows in _equal(hashes, field, scratch):
            _join_all(clusters, rows)
    exact = int((~distinct).sum())
    return Clusters(kept, clusters.roots(), exact, int((~kept).sum()) - exact)


def _join_all(union: UnionFind, rows: NDArray[np.int64]) -> None:
    for row in rows[1:].tolist():
        union.join(int(rows[0]), row)


def _join_near(
    union: UnionFind,
    signatures: NDArray[np.uint32],
    wanted: NDArray[np.bool_],
    threshold: float,
    places: NDArray[np.uint64] | None,
    scratch: Path,
) -> None:
    """Join the near-duplicates among the `wanted` rows; of equal `places` only, where these are given."""
    bands = _bands(signatures, wanted, threshold, places)
    for rows in equal_rows(sorted_records(bands, scratch / "bands.bin")):
        _join_similar(union, rows, signatures[rows], threshold)


def _join_similar(union: UnionFind, rows: NDArray[np.int64], sketches: NDArray[np.uint32], threshold: float) -> None:
    """Join the pairs that are similar enough. Pairs that are already joined are not compared, which keeps the number of
    comparisons linear when many prompts share one template."""
    roots = np.array([union.find(row) for row in rows.tolist()])
    for place in range(len(rows) - 1):
        later = place + 1 + np.flatnonzero(roots[place + 1 :] != roots[place])
        if not len(later):
            continue
        for other in later[similarity(sketches[place], sketches[later]) >= threshold].tolist():
            union.join(int(rows[place]), int(rows[other]))
            joined = union.find(int(rows[place]))
            roots[(roots == roots[place]) | (roots == roots[other])] = joined


def _equal(hashes: NDArray[np.void], field: str, scratch: Path) -> Iterator[NDArray[np.int64]]:
    def blocks() -> Iterator[NDArray[np.void]]:
        for start in range(0, len(hashes), CHUNK):
            block = np.array(hashes[start : start + CHUNK])
            rows = np.arange(start, start + len(block), dtype=np.uint64)
            named = block["grouped"] if field == "group" else np.ones(len(block), dtype=bool)
            yield _records(block[field][named], rows[named])

    return equal_rows(sorted_records(blocks(), scratch / f"{field}.bin"))


def _bands(
    signatures: NDArray[np.uint32], wanted: NDArray[np.bool_], threshold: float, places: NDArray[np.uint64] | None
) -> Iterator[NDArray[np.void]]:
    rows_in_band = rows_per_band(threshold)
    for start in range(0, len(signatures), _BLOCK):
        rows = start + np.flatnonzero(wanted[start : start + _BLOCK])
        keys = band_keys(signatures[rows], rows_in_band)
        if places is not None:  # rows of other places have other keys
            keys = keys ^ places[rows][:, None]
        yield _records(keys.ravel(), np.repeat(rows, keys.shape[1]).astype(np.uint64))


def _records(keys: NDArray[np.uint64], rows: NDArray[np.uint64]) -> NDArray[np.void]:
    records = np.empty(len(keys), dtype=RECORD)
    records["key"], records["row"] = keys, rows
    return records
