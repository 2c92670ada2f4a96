"""Which documents share a row of training. Pure."""

from collections.abc import Sequence


def pack_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Documents, by number, in rows of at most the longest one's length: best fit, longest first. Where all are about as long,
    a row is a document; where they differ, little is padded. Documents of a row stay apart: see `dataset.Collator`.

    Every document is in one row. The order of rows is that of their first documents, so it depends on the lengths alone.
    """
    capacity = max(lengths, default=0)
    rows: list[list[int]] = []
    room: dict[int, list[int]] = {}  # rows by the room they have left
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
