"""JSON files that end in long lists: one row per line, written atomically, no files left behind."""

import json
from pathlib import Path

import pytest

from pipeline.errors import UnderstudyError
from pipeline.store.parsing import Format
from pipeline.store.row_files import RowFile, read_head, read_listed_rows

FORMAT = Format(name="thing", content=dict[str, int])


def test_the_file_is_plain_json_with_a_row_a_line(tmp_path: Path) -> None:
    """Figures first, then the lists in their given order; an empty list stays a list."""
    rows = [{"id": "a", "text": "ü\n"}, {"id": "b", "value": 0.1}]
    with RowFile(tmp_path / "a.json", ["one", "two"]) as spools:
        spools.add("one", rows[:1])
        spools.add("one", rows[1:])
        spools.write({"z": 1, "figures": {"x": [1, 2]}}, "rows")
    text = (tmp_path / "a.json").read_text()

    assert {"z": 1, "figures": {"x": [1, 2]}, "rows": {"one": rows, "two": []}} == json.loads(text)
    assert ["figures", "z", "rows"] == list(json.loads(text))
    assert [json.dumps(rows[0], ensure_ascii=False) + ",", json.dumps(rows[1])] == [
        line for line in text.splitlines() if line.startswith('{"id"')
    ]
    assert ["a.json"] == [path.name for path in tmp_path.iterdir()]


def test_rows_can_be_removed(tmp_path: Path) -> None:
    """Rows added before `clear` are not in the file."""
    with RowFile(tmp_path / "a.json", ["one"]) as spools:
        spools.add("one", [{"id": 1}])
        spools.clear()
        spools.add("one", [{"id": 2}, {"id": 3}])
        spools.write({"schema": 2}, "rows")

    assert {"schema": 2, "rows": {"one": [{"id": 2}, {"id": 3}]}} == json.loads((tmp_path / "a.json").read_text())


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    """NaN raises an error, and neither the file nor its partial files remain."""
    with pytest.raises(ValueError, match="JSON"), RowFile(tmp_path / "a.json", ["one"]) as spools:
        spools.add("one", [{"value": float("nan")}])

    assert [] == list(tmp_path.iterdir())


def test_waiting_rows_look_like_the_remains_of_a_killed_run(tmp_path: Path) -> None:
    """The partial files of a killed run have names that the store deletes before it commits."""
    with RowFile(tmp_path / "a.json", ["one"]):
        assert 1 == len(list(tmp_path.rglob(".*.partial"))) == len(list(tmp_path.iterdir()))


def test_the_head_is_read_without_the_rows(tmp_path: Path) -> None:
    """The content above the lists is read even if the rows are damaged; other JSON is read whole."""
    head = {"schema": 2, "nested": {"rows": {"a": 1}}}
    with RowFile(tmp_path / "a.json", ["one"]) as spools:
        spools.add("one", [{"id": "b"}])
        spools.write(head, "rows")
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text()[:-12])
    (tmp_path / "other.json").write_text(json.dumps({"rows": {}}, indent=2))

    assert head == read_head(tmp_path / "a.json", "rows", FORMAT)
    assert {"rows": {}} == read_head(tmp_path / "other.json", "rows", FORMAT)


@pytest.mark.parametrize("text", ["", "{", '{\n "a": ,\n "rows": {\n'])
def test_a_damaged_head_is_named(tmp_path: Path, text: str) -> None:
    """A file that is not JSON or does not exist is an error of one line that names it."""
    with pytest.raises(UnderstudyError, match=r"a\.json: no such file"):
        read_head(tmp_path / "a.json", "rows", FORMAT)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UnderstudyError, match=r"a\.json: damaged"):
        read_head(tmp_path / "a.json", "rows", FORMAT)


def test_the_rows_of_one_list_are_read(tmp_path: Path) -> None:
    """One at a time, without the other lists; of other JSON all at once."""
    lists: dict[str, list[dict[str, int]]] = {"one": [{"id": 1}], "two": [{"id": 2}, {"id": 3}], "none": []}
    with RowFile(tmp_path / "a.json", list(lists)) as spools:
        for name, rows in lists.items():
            spools.add(name, rows)
        spools.write({"schema": 2}, "rows")
    (tmp_path / "other.json").write_text(json.dumps({"rows": lists}, indent=2))

    for file in ("a.json", "other.json"):
        found = {name: list(read_listed_rows(tmp_path / file, "rows", name, FORMAT)) for name in lists}
        assert lists == found
        with pytest.raises(KeyError, match="three"):
            list(read_listed_rows(tmp_path / file, "rows", "three", FORMAT))


@pytest.mark.parametrize("found", ["},\n", '"two": [', "]\n }\n}\n", '{"id": 3}', "  ],", "\n}\n"])
def test_damage_beside_the_rows_is_named(tmp_path: Path, found: str) -> None:
    """Also behind the list that is asked for, in one that is passed over."""
    with RowFile(tmp_path / "a.json", ["one", "two"]) as spools:
        spools.add("one", [{"id": 0}, {"id": 1}])
        spools.add("two", [{"id": 2}, {"id": 3}])
        spools.write({"schema": 2}, "rows")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace(found, "", 1))

    with pytest.raises(UnderstudyError, match=r"a\.json: damaged"):
        list(read_listed_rows(tmp_path / "a.json", "rows", "one", FORMAT))
