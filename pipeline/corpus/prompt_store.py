"""`prompts.arrow`: the corpus that later stages read, and its writer. Does not depend on a tokenizer.

An uncompressed Arrow IPC file, so that it can be memory-mapped.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.corpus.arrow_batches import batches, kept_batches
from pipeline.corpus.as_served import with_joined_parts, with_parts
from pipeline.corpus.near_duplicates import Clusters
from pipeline.corpus.row_facts import NO_FACTS, RowFacts
from pipeline.corpus.splits import SPLITS
from pipeline.errors import UnderstudyError
from pipeline.store.atomic import temporary_name
from pipeline.store.files import canonical_json
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

PROMPTS = "prompts.arrow"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text_id", pa.string()),
        ("conversation", pa.string()),
        ("split", pa.string()),
        ("domain", pa.string()),
        ("mode", pa.string()),
        ("cluster", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("chat", pa.string()),  # JSON of a Chat; null if there are no follow-ups
    ]
)


@dataclass(frozen=True)
class Chat:
    """A multi-turn chat: the messages so far, and the user messages to send after each later answer."""

    messages: tuple[Mapping[str, Any], ...]
    follow_ups: tuple[tuple[Mapping[str, Any], ...], ...]
    facts: RowFacts = NO_FACTS

    def with_answer(self, text: str) -> "Chat":
        """The chat extended by the target's answer and the next follow-up."""
        following, *later = self.follow_ups
        messages = (*self.messages, {"role": "assistant", "content": text}, *following)
        return replace(self, messages=messages, follow_ups=tuple(later))


@dataclass(frozen=True)
class Prompt:
    """One prompt. `id` is 16 hex digits of SHA-256 over the token ids as little-endian int32: equal ids, equal tokens.
    Prompts with one `text_id` have the same words (`same_text.py`); those with one `conversation` continue the same chat:
    it is the `text_id` of what opens the chat, and that of a prompt without answers.

    `split` is train, dev or examination; prompts of one `cluster` (a number within this artifact) share it. `chat` is set for
    chats with follow-ups.
    """

    id: str
    split: str
    domain: str
    cluster: int
    tokens: tuple[int, ...]
    chat: Chat | None = None
    text_id: str = field(kw_only=True)
    conversation: str = field(kw_only=True)
    mode: str = field(default="", kw_only=True)  # of the chat template, see `modes.py`


@dataclass
class CorpusCounts:
    """Counts of the written corpus: prompts by (domain, split), tokens, clusters, prompts of the largest cluster. `examined`: the
    conversations of the examination prompts, by domain."""

    prompts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examined: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    tokens: int = 0
    clusters: int = 0
    largest_cluster: int = 0

    def in_split(self, split: str) -> int:
        return sum(count for (_, where), count in self.prompts.items() if where == split)

    def by_domain(self) -> dict[str, dict[str, int]]:
        """{domain: {split: prompts}}, with every split."""
        domains = sorted({domain for domain, _ in self.prompts})
        return {domain: {split: self.prompts[domain, split] for split in SPLITS} for domain in domains}

    def conversations(self) -> dict[str, int]:
        """{domain: conversations} of the examination prompts, for the domains that have fewer of them than prompts."""
        counts = {domain: len(names) for domain, names in sorted(self.examined.items())}
        return {domain: count for domain, count in counts.items() if count < self.prompts[domain, "examination"]}


def write_prompts(
    path: Path,
    accepted: Path,
    hashes: NDArray[np.void],
    clusters: Clusters,
    splits: NDArray[np.uint8],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> CorpusCounts:
    """Copy the kept rows of the row buffer's `accepted` file to `path`, batch by batch, in the order they were read.

    `hashes` (fields `id`, `text`, `conversation`) and `splits` are [rows]; clusters are numbered by their first kept row.
    `renamed`: domains of logs that have another name (`small_domains.py`).
    """
    kept_first = clusters.first[clusters.kept]
    firsts, start, inverse, sizes = np.unique(kept_first, return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(firsts), dtype=np.int64)
    number[np.argsort(start)] = np.arange(len(firsts))
    cluster_of = np.full(len(clusters.kept), -1, dtype=np.int64)
    cluster_of[clusters.kept] = number[inverse]
    written = CorpusCounts(clusters=len(firsts), largest_cluster=int(sizes.max()))
    with pa.ipc.new_file(str(path), SCHEMA) as out:
        for batch, rows in kept_batches(accepted, clusters.kept):
            names = [SPLITS[split] for split in splits[rows]]
            domains, tokens = _domains(batch, renamed), batch.column("tokens")
            out.write_batch(
                pa.record_batch(
                    [
                        *(
                            pa.array([f"{int(value):016x}" for value in hashes[name][rows]])
                            for name in ("id", "text", "conversation")
                        ),
                        pa.array(names),
                        domains,
                        batch.column("mode"),
                        pa.array(cluster_of[rows]),
                        tokens,
                        batch.column("chat"),
                    ],
                    schema=SCHEMA,
                )
            )
            labels = list(zip(domains.to_pylist(), names, strict=True))
            written.prompts.update(labels)
            for (domain, split), name in zip(labels, hashes["conversation"][rows].tolist(), strict=True):
                if split == "examination":
                    written.examined[domain].add(name)
            written.tokens += len(tokens.flatten())
    return written


def _domains(batch: Any, renamed: Mapping[str, str]) -> Any:
    if not renamed:
        return batch.column("domain")
    pairs = zip(batch.column("domain").to_pylist(), batch.column("log_mode").to_pylist(), strict=True)
    return pa.array([domain if mode is None else renamed.get(domain, domain) for domain, mode in pairs], pa.string())


@dataclass(frozen=True)
class PromptColumns:
    """What prompts are sorted and chosen by, N each."""

    id: NDArray[Any]  # strings
    split: NDArray[np.uint8]  # index in SPLITS
    length: NDArray[np.int64]  # tokens

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> "PromptColumns":
        """Read from the file, if the prompts are in one."""
        if isinstance(prompts, StoredPrompts):
            return prompts.columns
        return cls(
            np.array([prompt.id for prompt in prompts], dtype=str),
            np.array([SPLITS.index(prompt.split) for prompt in prompts], dtype=np.uint8),
            np.array([len(prompt.tokens) for prompt in prompts], dtype=np.int64),
        )


class StoredPrompts(Sequence[Prompt]):
    """The prompts of a corpus artifact in file order. Each is read when it is asked for, so the memory hardly grows with their
    number."""

    @reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
    def __init__(self, path: Path, splits: Collection[str] | None) -> None:
        """Opens the prompts of `splits` only (None: all). FileNotFoundError, or ArrowInvalid for a damaged file."""
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        chosen = range(len(SPLITS)) if splits is None else [SPLITS.index(split) for split in splits]
        ids, codes, lengths, rows, self.has_chats, self._first = [], [], [], [], False, [0]
        for batch in batches(self._reader):
            code_B = np.array([SPLITS.index(split) for split in batch["split"].to_pylist()], dtype=np.uint8)
            row_B = np.flatnonzero(np.isin(code_B, chosen))
            ids.append(np.array(batch["id"].to_pylist(), dtype="S16")[row_B])
            codes.append(code_B[row_B])
            lengths.append(batch["tokens"].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)[row_B])
            rows.append(self._first[-1] + row_B)
            self.has_chats |= len(row_B) > 0 and batch["chat"].take(pa.array(row_B)).null_count < len(row_B)
            self._first.append(self._first[-1] + batch.num_rows)
        self._rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        self.columns = PromptColumns(
            np.concatenate(ids) if ids else np.zeros(0, "S16"),
            np.concatenate(codes) if codes else np.zeros(0, np.uint8),
            np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
        )

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, place: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        row = int(self._rows[place])
        batch = bisect_right(self._first, row) - 1
        (prompt,) = _prompts(self._reader.get_batch(batch).slice(row - self._first[batch], 1))
        return prompt

    def domains(self, split: str) -> set[str]:
        """The domains of the prompts of a split."""
        return {
            domain
            for batch in batches(self._reader)
            for domain, own_split in zip(batch["domain"].to_pylist(), batch["split"].to_pylist(), strict=True)
            if own_split == split
        }


def open_prompts(artifact_dir: Path, splits: Collection[str] | None = None) -> StoredPrompts:
    """The prompts of a corpus artifact, optionally of some `splits` (ValueError for an unknown name).

    UnderstudyError if the file is missing or damaged.
    """
    if splits is not None and set(splits) - set(SPLITS):
        raise ValueError(f"no such split: {', '.join(sorted(set(splits) - set(SPLITS)))}")
    path = artifact_dir / PROMPTS
    try:
        return StoredPrompts(path, splits)
    except FileNotFoundError:
        raise UnderstudyError(f"{path}: no such file; run the corpus stage first") from None
    except pa.ArrowInvalid as error:
        raise UnderstudyError(
            f"{path}: damaged ({' '.join(str(error).split())[:200]}); delete {artifact_dir} and run again"
        ) from None


@reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
def _prompts(batch: Any) -> Iterator[Prompt]:
    for row in batch.to_pylist():
        chat = None if row["chat"] is None else _chat(parse_json(row["chat"]))
        yield Prompt(
            row["id"],
            row["split"],
            row["domain"],
            row["cluster"],
            tuple(row["tokens"]),
            chat,
            text_id=row["text_id"],
            conversation=row["conversation"],
            mode=row["mode"],
        )


def chat_json(chat: Chat) -> str:
    """The chat as it is stored: the facts beside the messages, and contents of several parts as parts."""
    named = {item.name: getattr(chat.facts, item.name) for item in fields(RowFacts)}
    follow_ups = [list(map(with_parts, part)) for part in chat.follow_ups]
    return canonical_json({"messages": list(map(with_parts, chat.messages)), "follow_ups": follow_ups, **named})


def _chat(raw: Mapping[str, Any]) -> Chat:
    messages = tuple(map(with_joined_parts, raw["messages"]))
    follow_ups = tuple(tuple(map(with_joined_parts, part)) for part in raw["follow_ups"])
    facts = RowFacts(tuple(raw["tools"]), raw["arguments"], raw["time"], tuple(raw["roles"]), raw["longest"])
    return Chat(messages, follow_ups, facts)


_BLOCK = 256  # prompts of a batch


def spooled(prompts: Iterable[Prompt], directory: Path) -> StoredPrompts:
    """The prompts, read from a file when they are asked for. It loses its name in `directory` before this returns, so
    nothing is left behind: what is mapped is kept."""
    path, source = temporary_name(directory / PROMPTS), iter(prompts)
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as out:
            while block := [_row(prompt) for prompt in islice(source, _BLOCK)]:
                out.write_batch(pa.RecordBatch.from_pylist(block, schema=SCHEMA))
        return StoredPrompts(path, None)
    finally:
        path.unlink(missing_ok=True)


def _row(prompt: Prompt) -> dict[str, Any]:
    return {**vars(prompt), "chat": None if prompt.chat is None else chat_json(prompt.chat)}
