"""A data set of the hub as prompts: fetched at a commit, read as files, and one line where that cannot be."""

import json
import re
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

from pipeline.config.corpus import HUB_DATA, SourceFormat, named_source, source_path
from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.corpus.hub_data import named_prompts, source_files
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.sources import find_files
from pipeline.errors import UnderstudyError, UsageError
from pipeline.planning.forecast import forecast
from pipeline.planning.named_inputs import read_prompts
from pipeline.running.inputs import _FileDigests, _prompts, prompts_here

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


def _path(name: str, option: str, wanted: SourceFormat) -> Path:
    return named_prompts(name, option, wanted).path


def _read(name: str) -> list[str]:
    path = _path(name, "--prompts", "auto")
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
        _path("org/name", "--prompts", "auto")
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
        _path("org/name", "--prompts", "auto")
    with pytest.raises(
        UsageError, match=r"org/name: no file of format parquet, .*'org/name:PATTERN' and --prompt-format"
    ):
        _path("org/name", "--prompts", "parquet")
    assert not hub.fetched

    found = find_files(_path("org/name", "--prompts", "json"), "json", "")
    assert ["train.json"] == [found.name(file) for file in found.files]
    assert "data/x.csv" not in hub.fetched
    with pytest.raises(UsageError) as caught:
        _path("org/name:**/*[nv]", "--prompts", "auto")
    assert "give a glob such as org/name:*.jsonl" in str(caught.value)


def test_a_link_to_a_file_is_read_by_its_own_name(hub: Hub, tmp_path: Path) -> None:
    """By `init`, and by the run of its config."""
    hub(["train.jsonl"])
    (tmp_path / "folder").symlink_to(tmp_path)
    path = read_prompts(_path("org/name:train.jsonl", "--prompts", "auto"), {"prompt_field": "question"}).path
    assert path == tmp_path.resolve() / "snapshots" / COMMIT / "train.jsonl"
    config = _config(tmp_path, f"folder/snapshots/{COMMIT}/train.jsonl")
    assert str(path) == config.corpus.sources[0].path
    assert str(tmp_path.resolve()) == str(source_path(Path()))


def _config(place: Path, path: str) -> Config:
    (place / "my.yaml").write_text(
        f"name: a\npair: {{target: {{source: ./t}}, draft: {{source: ./d}}}}\n"
        f"corpus: {{sources: [{{path: '{path}', prompt_field: question}}]}}\n"
    )
    return load_config(place / "my.yaml")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("org/name:train.jsonl", f"org/name@{COMMIT}:train.jsonl"),
        ("org/name:data/test-*", f"org/name@{COMMIT}:data/test-*"),
        (f"org/more@{COMMIT}", f"org/more@{COMMIT}:data/test-*"),
    ],
)
def test_a_config_names_a_data_set_by_its_commit_and_files(hub: Hub, tmp_path: Path, asked: str, named: str) -> None:
    """As `init` writes it; a run reads the same files wherever it goes on, and its record has the name, not a path of a cache."""
    hub(["data/test-00000-of-00002.jsonl", "data/test-00001-of-00002.jsonl"])
    hub(["train.jsonl"] if "more" not in asked else [])
    chosen = named_prompts(asked, "--prompts", "auto")
    config = _config(tmp_path, chosen.name)
    (source,) = config.corpus.sources
    assert named == chosen.name == source.path
    assert chosen.path == prompts_here(config, "prompts_0") == source_files(0, source)
    record = _prompts(0, source, _FileDigests({}))
    local = _prompts(0, named_source(chosen.path, {}), _FileDigests({}))
    assert (named, local.digest) == (record.path, record.digest)
    assert (2 if "-*" in named else 1) == forecast(config).rows


def test_a_config_has_no_branch_of_a_data_set(hub: Hub, tmp_path: Path) -> None:
    """It would be other prompts tomorrow; the line says how it is named. A local path of this name is one, and a misspelled local
    file is not taken for a data set."""
    hub(["train.jsonl"])
    for path in ("org/name", "org/name@main", "org/name:data/test-*", "org/name@main:train*"):
        with pytest.raises(
            UsageError, match=r"corpus.sources.0.path: .* its commit .*init --prompts org/name` writes it"
        ):
            forecast(_config(tmp_path, path))
    with pytest.raises(UsageError, match=r"no such file or directory$"):
        forecast(_config(tmp_path, "org/name.jsonl"))
    (tmp_path / "org" / f"name@{COMMIT}").mkdir(parents=True)
    assert (
        str(tmp_path.resolve() / "org" / f"name@{COMMIT}")
        == _config(tmp_path, f"org/name@{COMMIT}").corpus.sources[0].path
    )
    assert not hub.fetched


def test_the_benchmarks_of_the_docs_are_recognised(tmp_path: Path) -> None:
    """Rows with the columns that they have; the column that the page names is the prompt."""
    others: dict[str, Any] = {
        "answer": "1",
        "solution": "b",
        "test": "c",
        "reference": [],
        "task_id": "d",
        "category": "e",
    }
    page = (Path(__file__).parents[3] / "docs" / "prompts.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([^|]+) \| `([^`]+/[^`]+)` \| `(\w+)`", page, re.M)
    assert 4 == len(lines)
    for benchmark, name, column in lines:
        assert HUB_DATA.fullmatch(name) is not None
        path = tmp_path / f"{benchmark}.jsonl"
        path.write_text(json.dumps({**others, column: ["a", "b"] if benchmark == "MT-bench" else "a"}) + "\n")
        found = read_prompts(path, {})
        assert ({column: 1}, benchmark == "MT-bench") == (found.kinds, bool(found.follow_ups))


@pytest.mark.parametrize("pattern", ["data/test-*", "data/*.jsonl", "**/*.jsonl", "data", "data/"])
def test_a_cache_with_a_part_of_the_shards_is_not_the_whole(hub: Hub, pattern: str) -> None:
    """As the hub's client gives it without a network, however the pattern asks for all. Whoever names some shards gets them."""
    hub(["data/test-00001-of-00003-1a.jsonl", "data/test-00002-of-00003-2b.jsonl", "data/dev-00001-of-00001.jsonl"])
    with pytest.raises(UnderstudyError, match="only 2 of 3 shards of data/test are in this machine's cache"):
        _read(f"org/name@{COMMIT}:{pattern}")
    assert 1 == len(_read(f"org/name@{COMMIT}:data/test-00001-of-00003-1a.jsonl"))
    assert 2 == len(_read(f"org/name@{COMMIT}:data/test-0000[12]-*"))
    assert 1 == len(_read(f"org/name@{COMMIT}:data/dev-*"))


@pytest.mark.parametrize(
    "name", ["prompts.jsonl", "logs/day.jsonl", "./org/name", "/data/org/name", "logs/*.jsonl", "here/name"]
)
def test_what_is_or_looks_like_a_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hub is not asked; that the file is missing is said by who reads it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", None)
    assert Path(name) == _path(name, "--prompts", "auto")


@pytest.mark.parametrize(
    ("error", "kind", "complaint"),
    [
        (RepositoryNotFoundError, UsageError, "^org/name: neither a directory here nor a data set of the hub"),
        (
            OSError("no route"),
            UnderstudyError,
            "^org/name: the hub does not report .*no route.*; .* give a local directory$",
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
        _path("org/name", "--prompts", "auto")


def test_files_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit needs no answer of the hub, and its files do."""

    def missing(*source: Any, **asked: Any) -> None:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", missing)
    with pytest.raises(UnderstudyError, match=r"cannot be listed by the hub \(offline\); .*with :PATTERN .*directory"):
        _path(f"org/name@{COMMIT}", "--prompts", "auto")
    with pytest.raises(
        UnderstudyError, match=r"the data set cannot be fetched from the hub \(offline\); .* local directory"
    ):
        _path(f"org/name@{COMMIT}:*.jsonl", "--prompts", "auto")
