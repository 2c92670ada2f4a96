"""A data set of the hub as prompts: fetched at a commit, read as files, and one line where that cannot be."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from pipeline.config.corpus import named_source, source_path
from pipeline.config.loading import load_config
from pipeline.corpus.hub_data import prompt_files
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.sources import find_files
from pipeline.errors import UnderstudyError, UsageError
from pipeline.planning.named_inputs import read_prompts

COMMIT = "0123456789" * 4


@dataclass
class Hub:
    """A hub with one data set, whose files have a row each; `fetched`: those that have come. As in its cache, they are links to
    blobs without an extension."""

    place: Path
    files: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __call__(self, files: Sequence[str]) -> None:
        self.files += files

    def snapshot(self, source: str, **asked: Any) -> str:
        assert ("dataset", COMMIT) == (asked["repo_type"], asked["revision"])
        root = self.place / "snapshots" / COMMIT
        for name in filter_repo_objects(self.files, allow_patterns=asked["allow_patterns"]):
            path, blob = root / name, self.place / "blobs" / sha256(name.encode()).hexdigest()
            path.parent.mkdir(parents=True, exist_ok=True)
            blob.parent.mkdir(exist_ok=True)
            blob.write_text(json.dumps({"question": name}) + "\n")
            if not path.is_symlink():
                path.symlink_to(blob)
            self.fetched.append(name)
        return str(root)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found.snapshot)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **asked: SimpleNamespace(sha=COMMIT))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **asked: found.files)
    monkeypatch.chdir(tmp_path)
    return found


def _read(name: str) -> list[str]:
    path = prompt_files(name, "--prompts", "auto")
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
        prompt_files("org/name", "--prompts", "auto")
    assert not hub.fetched

    assert ["main/test-00000-of-00001.jsonl"] == _read("org/name:main/test-*")
    with pytest.raises(UsageError, match="no file matches"):
        _read("org/name:main/dev-*")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("train.jsonl", ["train.jsonl"]),
        ("en/b[0].jsonl", ["en/b[0].jsonl"]),
        ("en/a*", ["en/a.jsonl"]),
        ("en", ["en/a.jsonl", "en/b[0].jsonl"]),
        ("en/", ["en/a.jsonl", "en/b[0].jsonl"]),
        ("**/[ax]*.jsonl", ["en/a.jsonl"]),
        ("**/tr*.jsonl", ["train.jsonl"]),
    ],
)
def test_a_pattern_limits_what_is_fetched(hub: Hub, pattern: str, expected: list[str]) -> None:
    """A file, a directory or a glob: what is read is fetched, and no more."""
    hub(["train.jsonl", "test.jsonl", "en/a.jsonl", "en/b[0].jsonl", "de/b0.csv"])
    assert expected == _read(f"org/name:{pattern}") == sorted(hub.fetched)


def test_the_format_chooses_files(hub: Hub) -> None:
    """Files that describe a data set are none of its prompts; what is advised is named as a user names it."""
    hub(["config.json", "train.json", "data/x.csv", ".hidden.csv"])
    with pytest.raises(UsageError, match=r"several formats \(1 csv, 1 json\); give .* such as 'org/name:\*\*/\*.csv'"):
        prompt_files("org/name", "--prompts", "auto")
    with pytest.raises(
        UsageError, match=r"org/name: no file of format parquet, .*'org/name:PATTERN' and --prompt-format"
    ):
        prompt_files("org/name", "--prompts", "parquet")
    assert not hub.fetched

    found = find_files(prompt_files("org/name", "--prompts", "json"), "json", "")
    assert ["train.json"] == [found.name(file) for file in found.files]
    assert "data/x.csv" not in hub.fetched
    with pytest.raises(UsageError) as caught:
        prompt_files("org/name:**/*[nv]", "--prompts", "auto")
    assert "give a glob such as org/name:*.jsonl" in str(caught.value)


def test_a_link_to_a_file_is_read_by_its_own_name(hub: Hub, tmp_path: Path) -> None:
    """By `init`, and by the run of its config."""
    hub(["train.jsonl"])
    (tmp_path / "folder").symlink_to(tmp_path)
    path = read_prompts(prompt_files("org/name:train.jsonl", "--prompts", "auto"), {"prompt_field": "question"}).path
    assert path == tmp_path.resolve() / "snapshots" / COMMIT / "train.jsonl"
    (tmp_path / "my.yaml").write_text(
        f"name: a\npair: {{target: {{source: ./t}}, draft: {{source: ./d}}}}\n"
        f"corpus: {{sources: [{{path: folder/snapshots/{COMMIT}/train.jsonl, prompt_field: question}}]}}\n"
    )
    assert str(path) == load_config(tmp_path / "my.yaml").corpus.sources[0].path
    assert str(tmp_path.resolve()) == str(source_path(Path()))


@pytest.mark.parametrize(
    "name", ["prompts.jsonl", "logs/day.jsonl", "./org/name", "/data/org/name", "logs/*.jsonl", "here/name"]
)
def test_what_is_or_looks_like_a_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hub is not asked; that the file is missing is said by who reads it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", None)
    assert Path(name) == prompt_files(name, "--prompts", "auto")


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
        prompt_files("org/name", "--prompts", "auto")


def test_files_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit needs no answer of the hub, and its files do."""

    def missing(*source: Any, **asked: Any) -> None:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", missing)
    with pytest.raises(UnderstudyError, match=r"cannot be listed by the hub \(offline\); .*with :PATTERN .*directory"):
        prompt_files(f"org/name@{COMMIT}", "--prompts", "auto")
    with pytest.raises(
        UnderstudyError, match=r"the data set cannot be fetched from the hub \(offline\); .* local directory"
    ):
        prompt_files(f"org/name@{COMMIT}:*.jsonl", "--prompts", "auto")
