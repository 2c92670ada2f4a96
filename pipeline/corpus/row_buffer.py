"""What is known of the accepted rows between the first pass and the last, on disk: tokens, hashes, signatures.

Three files side by side, a record a row, in the order of reading. Prompt text is hashed and let go, but for chats that go on.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.corpus.minhash import PERMUTATIONS, signatures
from pipeline.corpus.rows import Request
from pipeline.store.files import canonical_json

# 64-bit hashes: `id` of the token ids, `content` of the messages, `group` of source and group, `group_name` of the
# group alone (sources may be listed in another order tomorrow); `grouped` says whether the last two mean anything.
FACTS = np.dtype([("id", "<u8"), ("content", "<u8"), ("group", "<u8"), ("group_name", "<u8"), ("grouped", "?")])
ACCEPTED = pa.schema([("domain", pa.string()), ("tokens", pa.list_(pa.int32())), ("chat", pa.string())])


def token_hash(tokens: Sequence[int]) -> int:
    """The first 64 bits of SHA-256 over the ids as little-endian int32; a prompt's id is this in 16 hex digits."""
    return int.from_bytes(hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).digest()[:8], "big")


def text_hash(text: str) -> int:
    """The first 64 bits of SHA-256 over UTF-8."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _facts(request: Request, tokens: Sequence[int], source: int) -> tuple[int, int, int, int, bool]:
    content = text_hash(canonical_json([dict(message) for message in request.messages]))
    group = request.group
    scoped, name = (0, 0) if group is None else (text_hash(f"{source} {group}"), text_hash(group))
    return token_hash(tokens), content, scoped, name, group is not None


def _chat(request: Request) -> str | None:
    """What is needed to go on once the target has answered; nothing is kept of requests that end there."""
    if not request.follow_ups:
        return None
    return canonical_json({"messages": request.messages, "follow_ups": request.follow_ups})


class RowBuffer:
    """Writes while open, then reads by memory map. `folder` must exist; the caller removes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0

    @property
    def accepted(self) -> Path:
        return self.folder / "accepted.arrow"

    def __enter__(self) -> Self:
        self._facts = (self.folder / "facts.bin").open("wb")
        self._signatures = (self.folder / "signatures.bin").open("wb")
        self._tokens = pa.ipc.new_file(str(self.accepted), ACCEPTED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._facts.close()
        self._signatures.close()
        self._tokens.close()

    def add(self, source: int, requests: list[Request], tokens: list[list[int]], bare: list[list[int]]) -> None:
        """Append rows: their requests, the token ids the target gets, and the bare ids they are compared by."""
        if not requests:
            return
        facts = [_facts(request, ids, source) for request, ids in zip(requests, tokens, strict=True)]
        np.array(facts, dtype=FACTS).tofile(self._facts)
        signatures(bare).tofile(self._signatures)
        columns = [
            pa.array([request.domain for request in requests], pa.string()),
            pa.array(tokens, ACCEPTED.field("tokens").type),
            pa.array([_chat(request) for request in requests], pa.string()),
        ]
        self._tokens.write_batch(pa.record_batch(columns, schema=ACCEPTED))
        self.rows += len(requests)

    def facts(self) -> NDArray[np.void]:
        """FACTS of every row, [rows], memory-mapped."""
        return np.memmap(self.folder / "facts.bin", dtype=FACTS, mode="r")

    def signatures(self) -> NDArray[np.uint32]:
        """Signatures [rows, 128], memory-mapped."""
        flat = np.memmap(self.folder / "signatures.bin", dtype=np.uint32, mode="r")
        return flat.reshape(-1, PERMUTATIONS)
