"""Labels of stored tokens: beside their shards, once, and read with them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import read_completions, write_shard
from pipeline.generation.labelling import label_shards
from pipeline.generation.segment_files import segment_file, write_segments
from tests.fakes import stored_completion


class _OddTokens:
    """Odd tokens are thinking."""

    def __init__(self, names: Sequence[str] = ("answer", "thinking")) -> None:
        self.names, self.calls = names, list[tuple[list[int], bool]]()

    def labels(self, prompt: Sequence[int], tokens: Sequence[int], stopped: bool) -> NDArray[np.uint8]:
        self.calls.append((list(tokens), stopped))
        return np.array(tokens, dtype=np.uint8) % 2


def _write(directory: Path) -> None:
    ended = replace(stored_completion([1], [5], name="b"), stopped=True)
    rows = [stored_completion([1], [4, 3, 6, 8], name="a", length=2), ended]
    write_shard(directory, "shard-00000", rows)
    write_shard(directory, "shard-000001", [stored_completion([2], [7, 2], name="c")])


def test_labels_are_read_with_their_tokens(tmp_path: Path) -> None:
    _write(tmp_path)
    label_shards(tmp_path, labels := _OddTokens())
    found = {item.id: item for item in read_completions(tmp_path)}
    read = {name: item.segments.tolist() for name, item in found.items() if item.segments is not None}
    assert read == {"a": [0, 1, 1, 1], "b": [1], "c": [1, 0]}  # past the end: the last label
    assert found["a"].segment_names == ("answer", "thinking")
    assert labels.calls == [([4, 3], False), ([5], True), ([7, 2], False)]


def test_a_labelled_shard_is_not_labelled_again(tmp_path: Path) -> None:
    _write(tmp_path)
    label_shards(tmp_path, _OddTokens())
    segment_file(tmp_path, "shard-000001").unlink()
    label_shards(tmp_path, labels := _OddTokens())
    assert [tokens for tokens, _ in labels.calls] == [[7, 2]]


def test_one_segment_needs_no_labels(tmp_path: Path) -> None:
    _write(tmp_path)
    label_shards(tmp_path, _OddTokens(("answer",)))
    assert not list(tmp_path.glob("*.segments.arrow"))
    assert all(item.segments is None for item in read_completions(tmp_path))


@pytest.mark.parametrize(
    ("names", "labels"),
    [(["answer"], [0, 1, 0, 0, 0]), (["answer"], [0] * 4), (["answer"], [0] * 6), (["answer"], [])],
    ids=["no such name", "too few", "too many", "none"],
)
def test_labels_of_another_shard_are_refused(tmp_path: Path, names: list[str], labels: list[int]) -> None:
    _write(tmp_path)
    write_segments(tmp_path, "shard-00000", names, np.array(labels, dtype=np.uint8))
    with pytest.raises(UnderstudyError, match="another version"):
        list(read_completions(tmp_path))


def test_damaged_labels_are_named(tmp_path: Path) -> None:
    _write(tmp_path)
    segment_file(tmp_path, "shard-00000").write_bytes(b"no arrow")
    with pytest.raises(UnderstudyError, match=r"shard-00000\.segments\.arrow"):
        list(read_completions(tmp_path))
