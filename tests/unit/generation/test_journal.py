"""The journal of a shard: whole records are kept, whatever happened to the file."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.generation.journal import Journal, Record, read_journal, write_journal


def _record(number: int) -> Record:
    return Record(number, {"endpoints": ["http://a"], "length": number}, {"tokens": np.arange(number, dtype=np.int32)})


def _append(path: Path, *numbers: int) -> None:
    """By a process that opens the journal, and closes it."""
    journal = Journal(path)
    for number in numbers:
        journal.append(_record(number))
    journal.close()


def _numbers(path: Path) -> list[int]:
    return [record.number for record in read_journal(path)]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Facts and arrays, in order; none without a file."""
    path = tmp_path / "j"
    assert [] == read_journal(path)
    _append(path, 3, 1)
    first, second = read_journal(path)
    assert (3, {"endpoints": ["http://a"], "length": 3}) == (first.number, first.facts)
    assert [0] == second.arrays["tokens"].tolist()
    assert np.int32 == second.arrays["tokens"].dtype


def test_a_file_cut_at_any_byte_keeps_its_whole_records(tmp_path: Path) -> None:
    """A killed process leaves the beginning of a record; what is appended later is read."""
    path = tmp_path / "j"
    sizes = [0]
    for number in (1, 2, 3):
        _append(path, number)
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        kept = [number for number, size in zip((1, 2, 3), sizes[1:], strict=True) if size <= cut]
        _append(path, 9)
        assert [*kept, 9] == _numbers(path)


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 4096])
def test_zeros_at_the_end_are_no_records(tmp_path: Path, zeros: int) -> None:
    """A file system that lost its power leaves them in place of what was written last: a length of 0 with a right checksum."""
    path = tmp_path / "j"
    write_journal(path, [_record(1), _record(2)])
    path.write_bytes(path.read_bytes() + bytes(zeros))
    assert [1, 2] == _numbers(path)
    _append(path, 3)
    assert [1, 2, 3] == _numbers(path)


@pytest.mark.parametrize("place", [0, 4, 8, 100])
def test_a_changed_byte_ends_the_journal(tmp_path: Path, place: int) -> None:
    """A record whose checksum is wrong is not used, nor what follows it."""
    path = tmp_path / "j"
    write_journal(path, [_record(1), _record(2)])
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0xFF
    path.write_bytes(raw)
    assert [] == _numbers(path)


def test_a_journal_is_replaced_at_once(tmp_path: Path) -> None:
    """Nothing but the new records is left, and no other file."""
    path = tmp_path / "j"
    write_journal(path, [_record(1), _record(2), _record(3)])
    write_journal(path, [_record(2)])
    assert [2] == _numbers(path)
    assert ["j"] == [one.name for one in tmp_path.iterdir()]
