"""Every file that a user or a stranger can write: whatever is wrong with it, its reader ends soon and says so in one line."""

from pathlib import Path

import pytest

from tests.damage import PLACES, documents, put, read_or_refused, texts
from tests.unit.readers.kinds import KINDS, Kind
from tests.unit.readers.sites import json_parsers, sites

FEW, FEW_SLOW = 15, 4  # damaged documents of each kind in `make test`; `make test-long` reads all


def test_every_place_that_reads_is_listed() -> None:
    """A new reader needs an entry in KINDS, with a valid file, or `@reads_own_files("why")` where it stands."""
    listed = {place for kind in KINDS for place in kind.covers}
    found = {site.place for site in sites() if not site.exempt}
    assert ([], []) == (sorted(found - listed), sorted(listed - found))


def test_every_exemption_exempts_a_reader() -> None:
    """What reads nothing any more needs no reason."""
    exempt = [site for site in sites() if site.exempt]
    assert exempt
    assert [] == [site.place for site in exempt if not site.calls]


def test_json_is_parsed_in_one_place() -> None:
    """Only json_text.py knows what Python's parser raises: a number of 4,301 digits is no JSONDecodeError."""
    assert [] == json_parsers()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    """Some values, and the bytes."""
    _damage(kind, tmp_path, FEW_SLOW if kind.slow else FEW)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_damaged_value_is_read_or_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    """All values at all places."""
    _damage(kind, tmp_path, None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_no_file_is_refused(kind: Kind, tmp_path: Path) -> None:
    """A directory, a link to itself or to nowhere, a FIFO, a device without end: none blocks, none is read without end."""
    _write(kind, tmp_path, kind.text)
    path = tmp_path / kind.file
    path.unlink()
    for what in PLACES:
        put(what, path)
        with read_or_refused(f"{kind.name}: {what} at {path}"):
            kind.read(tmp_path)
        (path.rmdir if what == "directory" else path.unlink)()


def _damage(kind: Kind, place: Path, count: int | None) -> None:
    seed = sum(kind.name.encode())
    _write(kind, place, kind.text)
    kind.read(place)  # or the damaged ones would prove nothing
    damaged = list(texts(kind.text, seed))
    if kind.slow and count is not None:
        damaged = damaged[seed % 4 :: 4]
    if not isinstance(kind.valid, bytes):
        damaged += documents(kind.valid, count, seed)
    for content in damaged:
        (place / kind.file).write_bytes(content)
        with read_or_refused(f"{kind.name}: {content[:2_000]!r}"):
            kind.read(place)


def _write(kind: Kind, place: Path, content: bytes) -> None:
    kind.prepare(place)
    (place / kind.file).parent.mkdir(parents=True, exist_ok=True)
    (place / kind.file).write_bytes(content)
