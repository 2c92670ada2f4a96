"""Logs that grow and rotate in every way that loggers know: each row is read once, and none before the first look."""

import gzip
import json
import os
import random
import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

import pipeline.watch.followed_files as module
from pipeline.store.json_text import parse_json
from pipeline.watch.followed_files import LogPositions, follow

STATE = TypeAdapter(LogPositions | None)
NOW = 1.7956e9


class Log:
    """A file or directory that is followed; each look goes through the JSON of the state."""

    def __init__(self, path: Path, now: float = NOW) -> None:
        self.path, self.now = path, now
        self.state: LogPositions | None = None
        self.problems: Sequence[str] = ()

    def look(self) -> list[Any]:
        """The numbers of the rows that are new."""
        found = list[Any]()
        self.now += 300
        before = STATE.validate_python(parse_json(STATE.dump_json(self.state)))
        self.state, self.problems = follow(self.path, before, self.now, lambda row: found.append(row.get("n")))
        return found


def _rows(*numbers: int) -> str:
    return "".join(json.dumps({"n": number, "text": "x" * 50}) + "\n" for number in numbers)


def _append(path: Path, text: str | bytes, at: float | None = None) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    os.utime(path, (at or NOW + 10**6,) * 2)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A file with two rows, after the first look."""
    _append(tmp_path / "requests.jsonl", _rows(1, 2))
    log = Log(tmp_path / "requests.jsonl")
    assert [] == log.look()
    assert [] == log.problems
    return log


def test_a_file_that_grows(log: Log) -> None:
    """A row is read once it is whole, with or without the end of its line."""
    assert [] == log.look()
    row = _rows(3)
    _append(log.path, row[:20])
    assert [] == log.look()
    _append(log.path, row[20:-1])
    assert [3] == log.look()
    _append(log.path, "\n" + _rows(4, 5))
    assert [4, 5] == log.look()
    assert () == tuple(log.problems)


def test_a_first_look_within_a_line(tmp_path: Path) -> None:
    """The rest of that line is not read as a row."""
    log = Log(tmp_path / "requests.jsonl")
    _append(log.path, _rows(1) + _rows(2)[:20])
    assert [] == log.look()
    _append(log.path, _rows(2)[20:] + _rows(3))
    assert ([3], ()) == (log.look(), tuple(log.problems))


def test_rotation_by_renaming(log: Log) -> None:
    """What was appended before it is read from the renamed file, then the new one; compressed files are done with."""
    _append(log.path, _rows(3))
    log.path.rename(log.path.with_name("requests.jsonl.1"))
    _append(log.path, _rows(4))
    assert [3, 4] == sorted(log.look())
    with gzip.open(log.path.with_name("requests.jsonl.1.gz"), "wb") as packed:
        packed.write(_rows(1, 2, 3).encode())
    log.path.with_name("requests.jsonl.1").unlink()
    _append(log.path, _rows(5))
    assert [5] == log.look()


def test_rotation_by_copying_and_truncating(log: Log) -> None:
    """What was appended before it is only in the copy; the file begins anew, also where it is longer at once."""
    _append(log.path, _rows(3))
    shutil.copyfile(log.path, log.path.with_name("requests.jsonl.1"))
    os.truncate(log.path, 0)
    _append(log.path, _rows(4, 5, 6, 7, 8))
    assert [3, 4, 5, 6, 7, 8] == sorted(log.look())
    _append(log.path, _rows(9))
    assert [9] == log.look()


def test_a_truncated_file_whose_writer_goes_on_at_its_place(log: Log) -> None:
    """The file then begins with zeros."""
    size = log.path.stat().st_size
    os.truncate(log.path, 0)
    with log.path.open("r+b") as file:
        file.seek(size)
        file.write(_rows(3, 4).encode())
    assert ([3, 4], ()) == (log.look(), tuple(log.problems))


def test_a_replaced_file(log: Log) -> None:
    """With another content, shorter or longer, it is read anew; with the same beginning it is read on."""
    for name, numbers, expected in (
        ("a", (7,), [7]),
        ("b", (11, 12, 13, 14), [11, 12, 13, 14]),
        ("c", (11, 12, 13, 14, 15), [15]),
    ):
        other = log.path.with_name(name)
        _append(other, _rows(*numbers))
        os.link(log.path, log.path.with_name(f"kept-{name}"))  # else its inode may be used again
        other.replace(log.path)
        assert expected == log.look()
    assert log.state is not None
    assert 3 == len(log.state.files)  # the last continues the one before; two others are gone


def test_a_file_that_comes_later_and_goes(tmp_path: Path) -> None:
    """Its absence is told; a file that was made after the first look is read whole."""
    log = Log(tmp_path / "requests.jsonl")
    assert ([], [f"{log.path}: no such file"]) == (log.look(), log.problems)
    _append(log.path, _rows(1, 2))
    assert [1, 2] == log.look()
    log.path.unlink()
    assert ([], [f"{log.path}: no such file"]) == (log.look(), log.problems)
    missing = Log(tmp_path / "none" / "requests.jsonl")
    assert [] == missing.look()
    assert "No such file or directory" in missing.problems[0]


def test_other_files_beside_it_are_not_followed(log: Log) -> None:
    """Nor copies of it."""
    _append(log.path.with_name("requests-other.jsonl"), _rows(50))
    shutil.copyfile(log.path, log.path.with_name("requests.backup"))
    _append(log.path, _rows(3))
    assert [3] == log.look()
    _append(log.path.with_name("requests-other.jsonl"), _rows(51))
    assert [] == log.look()


def test_a_directory_of_dated_files(tmp_path: Path) -> None:
    """New files are read from their beginning, hidden ones too, which are renamed when their day is over; others are not."""
    log = Log(tmp_path)
    _append(tmp_path / ".requests-2026-11-24-7.jsonl", _rows(1, 2))
    _append(tmp_path / "README", "no log")
    assert [] == log.look()
    _append(tmp_path / ".requests-2026-11-24-7.jsonl", _rows(3))
    (tmp_path / ".requests-2026-11-24-7.jsonl").rename(tmp_path / "requests-2026-11-24-7.jsonl")
    _append(tmp_path / ".requests-2026-11-25-7.jsonl", _rows(4))
    _append(tmp_path / "requests.log-20261125", _rows(5))
    _append(tmp_path / "requests-2026-11-23-7.jsonl.gz", gzip.compress(_rows(0).encode()) + b"\n")
    assert ([3, 4, 5], ()) == (sorted(log.look()), tuple(log.problems))
    shutil.copyfile(tmp_path / ".requests-2026-11-25-7.jsonl", tmp_path / "copy.jsonl")
    _append(tmp_path / "copy.jsonl", "")
    (tmp_path / "requests-2026-11-24-7.jsonl").unlink()
    _append(tmp_path / "old.jsonl", _rows(100), at=NOW - 10**6)  # from before, such as one that was restored
    assert [] == log.look()


def test_another_path_begins_anew(log: Log, tmp_path: Path) -> None:
    """Positions of one log mean nothing in another."""
    _append(tmp_path / "other.jsonl", _rows(1))
    log.path = tmp_path / "other.jsonl"
    assert [] == log.look()
    _append(log.path, _rows(2))
    assert [2] == log.look()


def test_lines_that_are_no_rows(log: Log) -> None:
    """They are counted, with the place of the first; a whole row after them is read."""
    size = log.path.stat().st_size
    _append(log.path, b"\xff\xfe\n[1]\n7\n{broken\n\n" + _rows(3).encode())
    assert [3] == log.look()
    assert [f"{log.path}: 4 lines that are no JSON objects; the first: requests.jsonl at byte {size}"] == log.problems


def test_an_enormous_line_is_skipped_in_little_memory(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several looks, as it grows."""
    monkeypatch.setattr(module, "_MOST_LINE", 1 << 20)
    _append(log.path, b'{"n": "' + b"x" * (40 << 20))
    tracemalloc.start()
    assert [] == log.look()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert "1 lines of more than 1 MiB were skipped" in log.problems[0]
    _append(log.path, b"y" * (3 << 20))
    assert ([], ()) == (log.look(), tuple(log.problems))
    _append(log.path, '"}\n' + _rows(3))
    assert ([3], ()) == (log.look(), tuple(log.problems))


def test_a_look_reads_a_bounded_amount(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is read at the next look, and told."""
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    monkeypatch.setattr(module, "_CHUNK", 500)
    _append(log.path, _rows(*range(3, 40)))
    found = log.look()
    assert "bytes are left for the next look" in log.problems[0]
    while log.problems:
        found += log.look()
    assert list(range(3, 40)) == found


def test_the_state_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of files; positions in files that are gone are forgotten after days."""
    monkeypatch.setattr(module, "_MOST_FILES", 5)
    log = Log(tmp_path)
    for number in range(30):
        _append(tmp_path / f"{number}.jsonl", _rows(number), at=NOW + number)
        log.look()
        assert log.state is not None
        assert len(log.state.files) <= 5
    for file in tmp_path.iterdir():
        file.unlink()
    log.look()
    assert log.state is not None
    assert 5 == len(log.state.files)
    log.now += 3 * 86_400
    log.look()
    assert () == log.state.files


def test_of_many_files_those_written_last_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of a file a day grows for years."""
    monkeypatch.setattr(module, "_MOST_FILES", 2)
    log = Log(tmp_path)
    for day in range(3):
        _append(tmp_path / f"{day}.jsonl", _rows(day), at=NOW - 1000 + day)
    log.look()
    _append(tmp_path / "2.jsonl", _rows(7), at=NOW)
    assert [7] == log.look()


def test_a_log_that_cannot_be_read(log: Log) -> None:
    """It is told, and read on once it can be."""
    _append(log.path, _rows(3))
    moved = log.path.with_name("requests.moved")
    log.path.rename(moved)
    log.path.mkdir()
    assert [] == log.look()
    log.path.rmdir()
    moved.rename(log.path)
    assert [3] == log.look()


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_every_row_is_read_once_whatever_a_logger_does(count: int, tmp_path: Path) -> None:
    """Appends, halves of lines, renames, copies and truncations, replacements by longer ones, new files, in any order."""
    rng, log, written, found = random.Random(37), Log(tmp_path), 0, list[int]()
    current = tmp_path / "requests.jsonl"
    _append(current, "")
    assert [] == log.look()
    pending = ""
    for step in range(count):
        for _ in range(rng.randrange(4)):
            row = _rows(written)
            written += 1
            cut = rng.choice((0, 0, len(row) // 2))
            _append(current, pending + row[: len(row) - cut])
            pending = row[len(row) - cut :]
        if rng.random() < 0.4:
            found += log.look()
            assert [] == [one for one in log.problems if "no JSON" in one]
        if pending or rng.random() < 0.5:
            continue
        match rng.randrange(4):
            case 0:
                current.rename(tmp_path / f"requests.jsonl.{step}")
                _append(current, "")
            case 1:
                shutil.copyfile(current, tmp_path / f"requests.jsonl.{step}")
                os.utime(tmp_path / f"requests.jsonl.{step}", (NOW + 10**7,) * 2)
                os.truncate(current, 0)
            case 2:
                current = tmp_path / f"requests-{step}.jsonl"
                _append(current, "")
            case _:
                other = tmp_path / "replacing"
                shutil.copyfile(current, other)
                os.utime(other, (NOW + 10**7,) * 2)
                other.replace(current)
        for old in sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_ctime)[:-30]:
            old.unlink()
    _append(current, pending)
    found += log.look()
    assert list(range(written)) == sorted(found)
