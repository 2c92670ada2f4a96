"""State files: found, replaced and damaged."""

from pathlib import Path

import pytest

from pipeline.errors import UnderstudyError
from pipeline.store.artifacts import Store
from pipeline.store.parsing import Count, Format, Text, format_of, stored
from pipeline.store.state_files import StateFile


@stored(name="count of looks", schema=1, remedy="look again")
class _Looks:
    looks: Count


LOOKS = StateFile(format_of(_Looks), "looks/{}")
LISTS = StateFile(Format(name="lists", content=dict[Text, list[_Looks]]), "lists")


def test_each_name_has_a_state_of_its_own(tmp_path: Path) -> None:
    """None before the first; what is written replaces what was."""
    store = Store(tmp_path)
    assert LOOKS.find(store, "big-draft") is None

    LOOKS.write(store, _Looks(looks=1), "big-draft")
    LOOKS.write(store, _Looks(looks=2), "big-draft")
    LOOKS.write(store, _Looks(looks=5), "{other}")

    assert (2, 5) == tuple(found.looks for name in ("big-draft", "{other}") if (found := LOOKS.find(store, name)))
    assert tmp_path / "looks" / "big-draft.json" == LOOKS.path(store, "big-draft")
    assert ["big-draft.json", "{other}.json"] == sorted(path.name for path in (tmp_path / "looks").iterdir())


def test_a_state_of_parts_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Objects and lists of dataclasses."""
    store, value = Store(tmp_path), {"a": [_Looks(looks=1), _Looks(looks=2)], "b": []}
    with LISTS.changing(store):
        LISTS.write(store, value)

    assert value == LISTS.find(store)
    assert (tmp_path / "lists.json").is_file()


def test_a_damaged_state_says_what_to_do(tmp_path: Path) -> None:
    """One line, and nothing is taken for missing."""
    store = Store(tmp_path)
    LOOKS.write(store, _Looks(looks=1), "a")
    LOOKS.path(store, "a").write_text("{")
    with pytest.raises(UnderstudyError, match=r"looks/a\.json: damaged \(.*\); look again"):
        LOOKS.find(store, "a")


def test_two_that_change_a_state_wait_for_each_other(tmp_path: Path) -> None:
    """The lock is of the file, not of the store."""
    store = Store(tmp_path)
    with LISTS.changing(store), LOOKS.changing(store, "a"), LOOKS.changing(store, "b"):
        held = [path.name for path in (tmp_path / "locks").iterdir()]
        assert 3 == len(held)
        assert all(map(store.is_locked, held))
