"""Small domains of logs fold into one, in their template mode; what a log's writer or a config has labelled stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.small_domains import DomainCounts, folded_line


def _counts(sizes: dict[str, int], logs: dict[str, str]) -> DomainCounts:
    found, number = DomainCounts(50), 0
    for name, size in sizes.items():
        for _ in range(size):
            number += 1
            found.add(name, number, logs.get(name))
    return found


@pytest.mark.parametrize(
    ("sizes", "renamed"),
    [
        ({"chat": 40, "zzz": 6}, {"zzz": "chat"}),
        ({"chat": 40, "a": 6, "b": 5}, {"a": "other", "b": "other"}),
        ({"chat": 12, "code": 40, "a": 3, "b": 5}, {"a": "code", "b": "code"}),
        ({"a": 6, "b": 3}, {"a": "other", "b": "other"}),
        ({"chat": 6}, {}),
        ({"chat": 40, "code": 10}, {}),
        ({"chat": 40, "other": 6, "a": 4}, {"a": "other"}),
    ],
)
def test_small_domains_fold(sizes: dict[str, int], renamed: dict[str, str]) -> None:
    """Into `other`, or where that is small too into the largest; one that is alone keeps its name."""
    assert renamed == _counts(sizes, dict.fromkeys(sizes, "")).renamed(10)


def test_the_largest_domain_is_so_beyond_what_is_counted() -> None:
    """Conversations are counted to a bound, where all large domains are equal."""
    sizes = {"chat": 60, "code": 80, "zzz": 6}
    assert {"zzz": "code"} == _counts(sizes, dict.fromkeys(sizes, "")).renamed(10)


@pytest.mark.parametrize(
    ("row", "is_log"),
    [
        ({}, False),
        ({"author": "x"}, False),
        ({"temperature": 0.7}, True),
        ({"response": {"choices": []}}, True),
        ({"answer": {"choices": []}}, True),
        ({"answer": "a"}, False),
    ],
)
def test_a_column_of_times_makes_no_log(tmp_path: Path, row: dict[str, Any], is_log: bool) -> None:
    """Data sets have `created` too. A log's rows say how they were asked, or hold what an API answered."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "a", "created": 1.7e9, "domain": "d"} | row) + "\n")
    assert is_log == SourceReader(0, PromptSource(path="p"), tmp_path / "p.jsonl").is_log
    assert SourceReader(0, PromptSource(path="p", since="14d"), tmp_path / "p.jsonl").is_log
    assert SourceReader(0, PromptSource(path="p"), tmp_path / "p.jsonl", since=0.0).is_log


def test_only_labels_of_logs_fold() -> None:
    """A data set's domain is what its writer meant, however small."""
    assert {"zzz": "chat"} == _counts({"chat": 40, "zzz": 6, "mine": 3}, {"chat": "", "zzz": ""}).renamed(10)
    assert {} == _counts({"chat": 40, "zzz": 6}, {"chat": "", "zzz": ""}).renamed(0)


def test_domains_fold_within_their_mode() -> None:
    """Every figure of a domain is of one mode."""
    off = "enable_thinking=false"
    sizes = {"chat": 40, "zzz": 6, f"a ({off})": 4, f"b ({off})": 7}
    found = _counts(sizes, {name: off if off in name else "" for name in sizes})
    assert {"zzz": "chat", f"a ({off})": f"other ({off})", f"b ({off})": f"other ({off})"} == found.renamed(10)


def test_one_line_says_what_was_folded() -> None:
    found = _counts({"chat": 40, "zzz": 6}, {"chat": "", "zzz": ""})
    line = folded_line(found.renamed(10), found.conversations, 10)
    assert (
        "1 domain of logs with fewer than 10 prompts (corpus.min_domain_prompts) is now part of chat: zzz (6)" == line
    )


def test_a_conversation_counts_once() -> None:
    found = DomainCounts(50)
    for domain, conversation in (("chat", 1), ("chat", 1), ("chat", 2), ("zzz", 3), ("zzz", 4)):
        found.add(domain, conversation, "")
    assert {} == found.renamed(2)
    assert {"chat": "other", "zzz": "other"} == found.renamed(3)
