"""The text of the distillation benchmark: seven domains, from Python's library and from ../shared/data."""

import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.reference.text import Document, read_text
from tests.benchmarks.figures import ROOT

DATA = ROOT.parent / "shared" / "data"
_MEGABYTES = 2.0  # of each domain, 10^6 characters
_PROBLEMS, _LINES = 4, 80  # of a document of problems, of plays


def _code() -> Iterator[Document]:
    yield from read_text(Path(sysconfig.get_path("stdlib")), _MEGABYTES).modules


def _maths() -> Iterator[Document]:
    for number, some in enumerate(_groups(_rows("prompts/gsm8k_train.jsonl"), _PROBLEMS)):
        yield Document(
            f"gsm8k-{number}", "\n\n".join(f"Question: {row['question']}\nAnswer: {row['answer']}" for row in some)
        )


def _chat() -> Iterator[Document]:
    for row in _rows("corpora/sgd_dialogues.jsonl"):
        yield Document(
            f"chat-{row['id']}", "\n".join(f"{turn['speaker']}: {turn['utterance']}" for turn in row["turns"])
        )


def _json() -> Iterator[Document]:
    for row in _rows("corpora/sgd_dialogues.jsonl"):
        states = [{"turn": turn["speaker"].lower(), "frames": turn["frames"]} for turn in row["turns"]]
        yield Document(f"json-{row['id']}", "\n".join(json.dumps(state) for state in states))


def _commands() -> Iterator[Document]:
    for row in _rows("corpora/tldr.jsonl"):
        yield Document(row["path"], row["text"])


def _documents() -> Iterator[Document]:
    for row in _rows("corpora/peps.jsonl"):
        yield Document(row["path"], row["text"])


def _plays() -> Iterator[Document]:
    lines = (DATA / "corpora" / "shakespeare.txt").read_text(encoding="utf-8").splitlines()
    for number, some in enumerate(_groups(lines, _LINES)):
        yield Document(f"plays-{number}", "\n".join(some))


_READERS: dict[str, Callable[[], Iterator[Document]]] = {
    "code": _code,
    "maths": _maths,
    "chat": _chat,
    "json": _json,
    "commands": _commands,
    "documents": _documents,
    "plays": _plays,
}
DOMAINS = tuple(_READERS)


def read_domain(name: str) -> list[Document]:
    """Documents of a domain in an order that depends on their names alone."""
    chosen, size = [], 0
    for document in sorted(_READERS[name](), key=lambda one: hashlib.sha256(one.name.encode()).digest()):
        if size > _MEGABYTES * 1e6:
            break
        chosen.append(document)
        size += len(document.text)
    return chosen


def _groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    source = iter(items)
    while some := list(islice(source, size)):
        yield some


def _rows(name: str) -> Iterator[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        sys.exit(f"{path} is not here: the distillation benchmark reads its text from ../shared/data")
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
