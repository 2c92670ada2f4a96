"""Rows with equal keys, found by an external sort: memory is bounded by `chunk` records.

Does not depend on what a key means: a record is a 64-bit key and a row number.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.store.own_files import reads_own_files

RECORD = np.dtype([("key", "<u8"), ("row", "<u8")])
CHUNK = 1 << 20  # records in memory: 16 MB, and the same again while sorting


def sorted_records(blocks: Iterable[NDArray[np.void]], scratch: Path, chunk: int = CHUNK) -> Iterator[NDArray[np.void]]:
    """Sort the records of `blocks` (1-D arrays of dtype RECORD) by key, then row. Yields them in blocks of about `chunk` records.

    An external merge sort (Knuth, The Art of Computer Programming, vol. 3, 5.4). First, runs of at most `chunk` records are
    sorted in memory and written to the file `scratch`, which is removed at the end. Then the runs are merged: with one block of
    each run in memory, all records up to the smallest of the blocks' last records are complete and can be yielded.
    """
    try:
        lengths = _write_runs(blocks, scratch, chunk)
        yield from _merge(scratch, lengths, chunk)
    finally:
        scratch.unlink(missing_ok=True)


def equal_rows(records: Iterable[NDArray[np.void]]) -> Iterator[NDArray[np.int64]]:
    """The numbers of the rows of every key that occurs more than once, ascending, as an array of shape (n,), n >= 2.

    `records` are blocks as `sorted_records` yields them; a key may continue in the next block.
    """
    carried = np.empty(0, dtype=RECORD)
    for block in records:
        joined = np.concatenate([carried, block])
        ends = np.flatnonzero(joined["key"][1:] != joined["key"][:-1]) + 1
        last = int(ends[-1]) if len(ends) else 0  # the last key may continue in the next block
        yield from _repeated(joined[:last])
        carried = joined[last:]
    yield from _repeated(carried)


def _repeated(records: NDArray[np.void]) -> Iterator[NDArray[np.int64]]:
    if not len(records):
        return
    bounds = np.concatenate([[0], np.flatnonzero(records["key"][1:] != records["key"][:-1]) + 1, [len(records)]])
    for place in np.flatnonzero(np.diff(bounds) > 1):
        yield records["row"][bounds[place] : bounds[place + 1]].astype(np.int64)


def _in_order(records: NDArray[np.void]) -> NDArray[np.void]:
    return records[np.lexsort((records["row"], records["key"]))]


def _write_runs(blocks: Iterable[NDArray[np.void]], path: Path, chunk: int) -> list[int]:
    """Write sorted runs of at most `chunk` records to `path`; returns their lengths."""
    lengths = []
    with path.open("wb") as stream:
        for block in blocks:
            for start in range(0, len(block), chunk):
                run = _in_order(block[start : start + chunk])
                run.tofile(stream)
                lengths.append(len(run))
    return lengths


@reads_own_files("written by the same process")
def _merge(path: Path, lengths: list[int], chunk: int) -> Iterator[NDArray[np.void]]:
    if not lengths:
        return
    records = np.memmap(path, dtype=RECORD, mode="r")
    ends = np.cumsum(lengths)
    cursors = ends - np.array(lengths)
    size = max(chunk // len(lengths), 1)
    while (active := np.flatnonzero(cursors < ends)).size:
        held = {int(run): np.array(records[cursors[run] : min(cursors[run] + size, ends[run])]) for run in active}
        key, row = min((int(block[-1]["key"]), int(block[-1]["row"])) for block in held.values())
        taken = []
        for run, block in held.items():
            count = _not_above(block, key, row)
            taken.append(block[:count])
            cursors[run] += count
        yield _in_order(np.concatenate(taken))


def _not_above(block: NDArray[np.void], key: int, row: int) -> int:
    """The number of records of a sorted block that are at most (key, row)."""
    left = int(np.searchsorted(block["key"], np.uint64(key), "left"))
    right = int(np.searchsorted(block["key"], np.uint64(key), "right"))
    return int(left + np.searchsorted(block["row"][left:right], np.uint64(row), "right"))
