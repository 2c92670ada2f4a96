"""Completions of a shard that is not finished yet, in the order they came in, so that a killed run keeps what it has paid for.

A record is its length, its CRC-32 and an uncompressed `npz`. The file ends at a record that was not written whole, and where a
length is 0: a file system that lost its power may leave zeros in place of what was written last.
"""

import io
import json
import os
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.store.atomic import replacing
from pipeline.store.json_text import parse_json, regular_file

_HEADER = struct.Struct("<II")  # bytes of the record, CRC-32
_FACTS = "facts"
_SYNC_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """Some facts (JSON) and arrays, under a number."""

    number: int
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


class Journal:
    """An append-only file of records. After a loss of power the records of the last seconds may be missing."""

    def __init__(self, path: Path) -> None:
        """Open `path` or make it. What follows its last whole record is cut off."""
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(sum(size for _, size in _records(path)))
        self._synced = time.monotonic()

    def append(self, record: Record) -> None:
        """The record is in the file when this returns; a killed process does not lose it."""
        body = io.BytesIO()
        facts = json.dumps({"number": record.number, **record.facts}).encode()
        arrays: dict[str, Any] = {_FACTS: np.frombuffer(facts, np.uint8), **record.arrays}
        np.savez(body, **arrays)
        raw = body.getvalue()
        self._file.write(_HEADER.pack(len(raw), zlib.crc32(raw)) + raw)
        self._file.flush()
        if time.monotonic() - self._synced > _SYNC_SECONDS:  # each record would cost more than an answer
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> list[Record]:
    """The whole records of a journal, in the order they were written; none without the file."""
    return [record for record, _ in _records(path)] if path.exists() else []


def write_journal(path: Path, records: list[Record]) -> None:
    """Replace the journal with `records`, at once or not at all."""
    with replacing(path) as partial:
        journal = Journal(partial)
        for record in records:
            journal.append(record)
        journal.close()


def _records(path: Path) -> Iterator[tuple[Record, int]]:
    """Each whole record with its bytes in the file."""
    try:
        with regular_file(path) as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                length, checksum = _HEADER.unpack(header)
                raw = file.read(length)
                if not length or len(raw) < length or zlib.crc32(raw) != checksum:
                    return
                yield _record(path, raw), _HEADER.size + length
    except OSError as error:
        raise UnderstudyError(f"{path}: {error.strerror or error}; delete it and run again") from None


def _record(path: Path, raw: bytes) -> Record:
    """UnderstudyError for a record with a right checksum that is not one of this journal."""
    try:
        with np.load(io.BytesIO(raw)) as arrays:
            record = dict(arrays)
        facts = parse_json(record.pop(_FACTS).tobytes())
        return Record(facts.pop("number"), facts, record)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise UnderstudyError(f"{path}: damaged ({type(error).__name__}: {error}); delete it and run again") from None
