"""The completion store: what is written is read back, and a damaged file is named."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_files import modes, text_ids
from pipeline.generation.completion_store import (
    StoredCompletion,
    read_completions,
    shard_exists,
    stored_samplings,
    write_shard,
)
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import plain_values, stored_completion


def _rows() -> list[StoredCompletion]:
    return [
        stored_completion([1, 2, 3], [4, 5], name="a", split="train", seed=1),
        stored_completion([6], [7, 8, 9, 10], name="b", split="examination", domain="chat", length=1, seed=2),
        stored_completion([6], [7], name="b", split="examination", domain="chat", greedy=True, seed=3),
    ]


def test_completions_are_read_back(tmp_path: Path) -> None:
    """Over two shards, in the order written: every field, its type, the lookahead after the length, and the size of the
    vocabulary, which is needed to unpack entries."""
    rows = [*_rows(), stored_completion([1], [2, 3], vocabulary=100)]
    write_shard(tmp_path, "shard-00000", rows[:3])
    write_shard(tmp_path, "shard-00001", rows[3:])
    shards = ["shard-00000"] * 3 + ["shard-00001"]
    expected = [replace(row, shard=name) for row, name in zip(rows, shards, strict=True)]

    assert list(map(plain_values, expected)) == list(map(plain_values, read_completions(tmp_path)))
    assert all(shard_exists(tmp_path, name) for name in shards)


def test_reading_can_choose_splits_and_kind(tmp_path: Path) -> None:
    """By split, by greedy or sampled, and both."""
    write_shard(tmp_path, "shard-00000", _rows())

    assert ["a"] == [item.id for item in read_completions(tmp_path, {"train", "dev"})]
    assert [(4, False)] == [(len(i.tokens), i.greedy) for i in read_completions(tmp_path, {"examination"}, Sampling())]
    assert [(1, True)] == [(len(i.tokens), i.greedy) for i in read_completions(tmp_path, sampling=GREEDY)]


def test_every_completion_carries_its_sampling_tuple(tmp_path: Path) -> None:
    """All four settings are stored and can be selected; at temperature 0 the filters are dropped, because they have no effect."""
    tuples = [Sampling(0.7, 20, 0.9, 0.05), Sampling(), Sampling(0.0, 5, 0.5), Sampling(0.7, 20, 0.9)]
    rows = [
        stored_completion([1], [2], name=f"p{n}", split="examination", sampling=item) for n, item in enumerate(tuples)
    ]
    write_shard(tmp_path, "shard-00000", [*rows, stored_completion([1], [2], name="t", sampling=tuples[0])])
    write_shard(
        tmp_path, "shard-00001", [stored_completion([1], [2], name="p4", split="examination", sampling=tuples[0])]
    )

    assert {tuples[0]: 2, Sampling(): 1, GREEDY: 1, tuples[3]: 1} == stored_samplings(tmp_path, {"examination"})
    assert ["p0", "t", "p4"] == [item.id for item in read_completions(tmp_path, sampling=tuples[0])]
    assert ["p2"] == [item.id for item in read_completions(tmp_path, sampling=tuples[2])]
    assert [False, False, True, False] == [item.greedy for item in list(read_completions(tmp_path))[:4]]
    assert [] == list(read_completions(tmp_path, {"dev"}, Sampling()))


@pytest.mark.parametrize("kind", ["completions", "tokens"])
def test_a_file_of_another_version_is_named(tmp_path: Path, kind: str) -> None:
    """One with other columns is refused."""
    write_shard(tmp_path, "shard-00000", _rows())
    path = tmp_path / f"shard-00000.{kind}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema := pa.schema([("id", pa.string())])) as out:
        out.write_batch(pa.record_batch([pa.array(["a"])], schema=schema))

    with pytest.raises(UnderstudyError, match=rf"{path.name}: written by another version"):
        list(read_completions(tmp_path))


def test_a_shard_is_unmapped_after_its_last_completion(tmp_path: Path) -> None:
    """Reading on unmaps earlier shards: one token file is mapped at any time."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    for number in range(6):
        write_shard(tmp_path, f"shard-{number:05d}", _rows())
    most = 0
    for item in read_completions(tmp_path):
        mapped = [line for line in maps.read_text().splitlines() if str(tmp_path) in line and ".tokens.arrow" in line]
        most = max(most, len(mapped))
        del item

    assert 1 == most
    assert str(tmp_path) not in maps.read_text()


def test_the_same_completions_give_the_same_bytes(tmp_path: Path) -> None:
    """File content does not depend on time or path."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name, "shard-00000", _rows())
    names = sorted(path.name for path in (tmp_path / "one").iterdir())

    assert ["shard-00000.completions.arrow", "shard-00000.tokens.arrow"] == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("files", [0, 1])
def test_a_kill_while_writing_leaves_no_shard(files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before either file is renamed, and between the two."""
    own, moved = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        if len(moved) == files:
            raise KeyboardInterrupt
        moved.append(target)
        return own(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path, "shard-00000", _rows())

    assert not shard_exists(tmp_path, "shard-00000")
    assert [] == list(read_completions(tmp_path))
    assert files == len(list(tmp_path.glob("*.arrow")))


def test_texts_and_modes_are_those_of_the_splits(tmp_path: Path) -> None:
    rows = [
        replace(stored_completion([1], [2], name=split, split=split), mode=f"of {split}")
        for split in ("train", "dev", "examination")
    ]
    write_shard(tmp_path, "shard-00000", rows)
    assert modes(tmp_path, {"dev", "examination"}) == {"of dev", "of examination"}
    assert text_ids(tmp_path, {"train"}) == {"train": "text of train"}
