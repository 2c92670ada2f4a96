"""Prompts that a stage makes, in a file: there may be as many later turns as there are chats, too many for memory."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.corpus.prompt_store import PROMPTS, SCHEMA, Prompt, StoredPrompts, chat_json
from pipeline.store.atomic import temporary_name

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
