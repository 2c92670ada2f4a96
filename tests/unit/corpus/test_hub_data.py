"""A data set of the hub as prompts: fetched at a commit, read as files, and one line where that cannot be."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from pipeline.config.corpus import named_source
from pipeline.corpus.hub_data import prompt_files
from pipeline.corpus.readers import SourceReader
from pipeline.errors import UnderstudyError, UsageError

COMMIT = "0123456789" * 4
Hub = Callable[[Sequence[str]], None]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with one data set, whose files have a row each; nothing of it is fetched but what is asked for."""

    def snapshot(source: str, **asked: Any) -> str:
        assert ("dataset", COMMIT) == (asked["repo_type"], asked["revision"])
        return str(tmp_path / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda self, source, **asked: SimpleNamespace(sha=COMMIT), raising=True
    )
    monkeypatch.chdir(tmp_path)

    def fill(files: Sequence[str]) -> None:
        for name in files:
            path = tmp_path / "snapshots" / COMMIT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"question": name}) + "\n")

    return fill


def _read(name: str) -> list[str]:
    path = prompt_files(name, "--prompts")
    reader = SourceReader(0, named_source(path, {}), path, option="--prompts")
    return [row.value["question"] for row in reader]


def test_a_data_set_is_read_as_its_files(hub: Hub) -> None:
    """Shards of one split are one set; its columns are recognised as those of any file."""
    hub(["data/test-00000-of-00002.jsonl", "data/test-00001-of-00002.jsonl", "README.md"])
    assert ["data/test-00000-of-00002.jsonl", "data/test-00001-of-00002.jsonl"] == _read("org/name")
    assert 2 == len(_read(f"org/name@{COMMIT}"))


def test_several_splits_are_not_mixed(hub: Hub) -> None:
    """They are named, and a pattern chooses."""
    hub(["main/test-00000-of-00001.jsonl", "main/train-00000-of-00001.jsonl"])
    with pytest.raises(
        UsageError, match=r"several splits or parts \(main/test-\*, .*\); name one, such as 'org/name:main"
    ):
        prompt_files("org/name", "--prompts")

    assert ["main/test-00000-of-00001.jsonl"] == _read("org/name:main/test-*")
    with pytest.raises(UsageError, match="no file matches"):
        _read("org/name:main/dev-*")


@pytest.mark.parametrize(
    "name", ["prompts.jsonl", "logs/day.jsonl", "./org/name", "/data/org/name", "logs/*.jsonl", "here/name"]
)
def test_what_is_or_looks_like_a_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hub is not asked; that the file is missing is said by who reads it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", None)
    assert Path(name) == prompt_files(name, "--prompts")


@pytest.mark.parametrize(
    ("error", "kind", "complaint"),
    [
        (RepositoryNotFoundError, UsageError, "^org/name: neither a directory here nor a data set of the hub"),
        (
            OSError("no route"),
            UnderstudyError,
            "^org/name: the hub does not say .*no route.*; .* give a local directory$",
        ),
    ],
)
def test_a_hub_without_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Any, kind: type[Exception], complaint: str
) -> None:
    """Not there, or not reached: what, and what to do."""
    if error is RepositoryNotFoundError:
        error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    def ask(self: Any, source: str, **asked: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", ask)
    with pytest.raises(kind, match=complaint):
        prompt_files("org/name", "--prompts")


def test_files_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit needs no answer of the hub, and its files do."""

    def missing(source: str, **asked: Any) -> None:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    with pytest.raises(
        UnderstudyError, match=r"the data set cannot be fetched from the hub \(offline\); .* local directory"
    ):
        prompt_files(f"org/name@{COMMIT}", "--prompts")
