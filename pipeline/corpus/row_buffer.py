"""The row buffer: tokens, hashes and signatures of the accepted rows, on disk between the passes.

Three files with one record per row, in reading order. Prompt text is hashed and dropped, except for multi-turn chats.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.corpus.accepted_rows import AcceptedRow
from pipeline.corpus.answer_store import ANSWER, StoredAnswer
from pipeline.corpus.minhash import PERMUTATIONS, signatures
from pipeline.corpus.modes import mode_of
from pipeline.corpus.prompt_store import Chat, chat_json
from pipeline.corpus.rows import ParsedPrompt
from pipeline.store.files import canonical_json
from pipeline.store.own_files import reads_own_files

# 64-bit hashes: `id` of the token ids, `text` of the words (`same_text.text_id`), `conversation` of the words that open the chat,
# `group` of source and group, `group_name` of the group alone (independent of the order of the sources), `place` of turn and
# template mode; `grouped`: whether the row has a group.
_NAMES = ("id", "text", "conversation", "group", "group_name", "place")
ROW_HASHES = np.dtype([*((name, "<u8") for name in _NAMES), ("grouped", "?")])
ACCEPTED = pa.schema(
    [
        ("domain", pa.string()),
        ("mode", pa.string()),
        ("log_mode", pa.string()),  # `ParsedPrompt.log_mode`
        ("tokens", pa.list_(pa.int32())),
        ("chat", pa.string()),
        ("answer", ANSWER),
    ]
)


def token_hash(tokens: Sequence[int]) -> int:
    """The first 64 bits of SHA-256 over the ids as little-endian int32; a prompt's id is this in 16 hex digits."""
    return int.from_bytes(hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).digest()[:8], "big")


def text_hash(text: str) -> int:
    """The first 64 bits of SHA-256 over UTF-8."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _hashes(row: AcceptedRow) -> tuple[int, int, int, int, int, int, bool]:
    prompt, group = row.prompt, row.prompt.group
    scoped, name = (0, 0) if group is None else (text_hash(f"{row.source} {group}"), text_hash(group))
    place = text_hash(prompt.place) if prompt.place else 0
    texts = (int(prompt.text_id, 16), int(prompt.conversation, 16))
    return token_hash(row.tokens), *texts, scoped, name, place, group is not None


def _chat(prompt: ParsedPrompt) -> str | None:
    """A multi-turn chat as it is stored; None for other prompts."""
    return chat_json(Chat(prompt.messages, prompt.follow_ups, prompt.facts)) if prompt.follow_ups else None


def _answer(answer: StoredAnswer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    stated = canonical_json(dict(answer.stated))
    return {"tokens": answer.tokens, "cut": answer.cut, "exact": answer.exact, "stated": stated}


class RowBuffer:
    """Writes while open; afterwards reads are memory-mapped. `folder` must exist; the caller removes it. `arguments` of the chat
    template are those of prompts that state none."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        self.folder, self._arguments = folder, arguments
        self.rows = 0

    @property
    def accepted(self) -> Path:
        return self.folder / "accepted.arrow"

    def __enter__(self) -> Self:
        self._hashes = (self.folder / "hashes.bin").open("wb")
        self._signatures = (self.folder / "signatures.bin").open("wb")
        self._tokens = pa.ipc.new_file(str(self.accepted), ACCEPTED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hashes.close()
        self._signatures.close()
        self._tokens.close()

    def add(self, rows: Sequence[AcceptedRow]) -> None:
        if not rows:
            return
        np.array(list(map(_hashes, rows)), dtype=ROW_HASHES).tofile(self._hashes)
        signatures([row.bare for row in rows]).tofile(self._signatures)
        prompts = [row.prompt for row in rows]
        columns = [
            pa.array([prompt.domain for prompt in prompts], pa.string()),
            pa.array([mode_of({**self._arguments, **prompt.arguments}) for prompt in prompts], pa.string()),
            pa.array([prompt.log_mode for prompt in prompts], pa.string()),
            pa.array([row.tokens for row in rows], ACCEPTED.field("tokens").type),
            pa.array([_chat(prompt) for prompt in prompts], pa.string()),
            pa.array([_answer(row.answer) for row in rows], ANSWER),
        ]
        self._tokens.write_batch(pa.record_batch(columns, schema=ACCEPTED))
        self.rows += len(rows)

    @reads_own_files("written by the same process")
    def hashes(self) -> NDArray[np.void]:
        """ROW_HASHES of every row, [rows], memory-mapped."""
        return np.memmap(self.folder / "hashes.bin", dtype=ROW_HASHES, mode="r")

    @reads_own_files("written by the same process")
    def signatures(self) -> NDArray[np.uint32]:
        """Signatures [rows, 128], memory-mapped."""
        flat = np.memmap(self.folder / "signatures.bin", dtype=np.uint32, mode="r")
        return flat.reshape(-1, PERMUTATIONS)
