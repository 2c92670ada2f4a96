"""Packing: which documents share a training row. Pure."""

from collections.abc import Sequence


def pack_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Document numbers by row, by best-fit decreasing; a row's capacity is the longest document. Documents in a row are masked
    from each other, see `dataset.PackedCompletions.collate`.

    Every document is in exactly one row. Rows are sorted by their first documents, so the result depends only on the lengths.
    """
    capacity = max(lengths, default=0)
    rows: list[list[int]] = []
    room: dict[int, list[int]] = {}  # rows by free space
    for document in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        length = lengths[document]
        fitting = next((left for left in range(length, capacity + 1) if room.get(left)), None)
        if fitting is None:
            row, left = len(rows), capacity
            rows.append([])
        else:
            row, left = room[fitting].pop(), fitting
        rows[row].append(document)
        room.setdefault(left - length, []).append(row)
    return sorted((sorted(row) for row in rows), key=lambda row: row[0])
