"""`acceptance_by_token.arrow`: a_t of every token of the examined completions, from which examples are shown to reviewers.

Half precision is enough to show a token, and for the acceptance by how rows of a new vocabulary were made; no other figure is
computed from this file.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Acceptance
from pipeline.errors import UnderstudyError
from pipeline.store.atomic import sync
from pipeline.store.own_files import reads_own_files

FILE = "acceptance_by_token.arrow"
_SCHEMA = pa.schema([("id", pa.string()), ("a", pa.list_(pa.float16()))])


class _Completion(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def length(self) -> int: ...


class TokenAcceptanceFile:
    """Writes the file window by window. `with TokenAcceptanceFile(path) as file: file.add(completions, a)`."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, pa.OSFile(str(path), "wb")
        self._writer: Any = pa.ipc.new_file(self._file, _SCHEMA)

    def __enter__(self) -> "TokenAcceptanceFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._file.close()  # the writer does not; a network file system reports here, or in `sync`, that its disk is full
        if kind is None:
            sync(self._path)

    def add(self, completions: Sequence[_Completion], acceptance: Sequence[Acceptance]) -> None:
        """Add completions with the a_t of each; what lies past a completion's length is left out."""
        rows = [own.at(1)[: item.length].astype(np.float16) for item, own in zip(completions, acceptance, strict=True)]
        self._writer.write_batch(pa.record_batch([[item.id for item in completions], rows], schema=_SCHEMA))

    @reads_own_files("a shard, written by a worker of the same job")
    def append(self, path: Path) -> None:
        """Add the completions of another such file."""
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                self._writer.write_batch(reader.get_batch(number))


@reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
def read_token_acceptance(directory: Path, ids: Collection[str]) -> dict[str, NDArray[np.float16]]:
    """a_t of the completions of these prompts, (tokens,) each; prompts that are not in the file are left out.

    UnderstudyError names a file that is missing or damaged.
    """
    path, by_prompt = directory / FILE, dict[str, NDArray[np.float16]]()
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                for row, name in enumerate(batch["id"].to_pylist()):
                    if name in ids:
                        by_prompt[name] = np.array(batch["a"][row].values)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnderstudyError(f"{path}: missing or damaged ({error}); delete its directory and run again") from None
    return by_prompt
