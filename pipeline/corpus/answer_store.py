"""`answers.arrow`: the recorded answers of a corpus's prompts as token ids. Only where a source uses them. No tokenizer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.corpus.arrow_batches import batches, kept_batches
from pipeline.errors import UnderstudyError
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

ANSWERS = "answers.arrow"
ANSWER = pa.struct(
    [("tokens", pa.list_(pa.int32())), ("cut", pa.bool_()), ("exact", pa.bool_()), ("stated", pa.string())]
)
"""Arrow type of a StoredAnswer; `stated` is JSON."""


@dataclass(frozen=True)
class StoredAnswer:
    """The tokens that follow the prompt's: the answer, and what the chat template writes after it unless it was `cut`."""

    tokens: tuple[int, ...]
    cut: bool
    stated: Mapping[str, float] = field(default_factory=dict)  # sampling settings that the log states
    exact: bool = True  # the log has the token ids; else they are those of its text, tokenised again


def write_answers(path: Path, accepted: Path, ids: NDArray[np.uint64], kept: NDArray[np.bool_]) -> int:
    """Write the answers of the kept rows of the row buffer's `accepted` file, batch by batch, and return their number. No file
    where there is none. `ids` and `kept` are [rows]."""
    schema, written = pa.schema([("id", pa.string()), ("answer", ANSWER)]), 0
    with pa.ipc.new_file(str(path), schema) as out:
        for batch, rows in kept_batches(accepted, kept):
            answers = batch.column("answer")
            chosen = np.flatnonzero(answers.is_valid().to_numpy(zero_copy_only=False))
            if len(chosen):
                names = [f"{int(value):016x}" for value in ids[rows[chosen]]]
                out.write_batch(pa.record_batch([pa.array(names), answers.take(pa.array(chosen))], schema=schema))
            written += len(chosen)
    if not written:
        path.unlink()
    return written


class StoredAnswers:
    """The answers of a corpus, each read when it is asked for."""

    @reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
    def __init__(self, artifact_dir: Path) -> None:
        """UnderstudyError for a damaged file; a corpus without answers has none."""
        self._names = np.zeros(0, "S16")
        path = artifact_dir / ANSWERS
        if not path.exists():
            return
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
            ids = [batch.column("id") for batch in batches(self._reader)]
            names = np.concatenate([np.array(column.to_pylist(), dtype="S16") for column in ids])
            self._first = np.cumsum([0, *map(len, ids)])
            self._rows = np.argsort(names)
            self._names = names[self._rows]
        except pa.ArrowInvalid as error:
            raise UnderstudyError(
                f"{path} is damaged ({error}); delete {artifact_dir} and run the corpus stage again"
            ) from None

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str) -> StoredAnswer | None:
        """The answer to the prompt with this id; None if there is none."""
        place = int(np.searchsorted(self._names, wanted := np.bytes_(name.encode())))
        if place == len(self._names) or self._names[place] != wanted:
            return None
        row = int(self._rows[place])
        batch = int(np.searchsorted(self._first, row, side="right")) - 1
        return _answer(self._reader.get_batch(batch).column("answer")[row - int(self._first[batch])].as_py())

    def __iter__(self) -> Iterator[StoredAnswer]:
        """Every answer, in the order of the file."""
        for batch in batches(self._reader) if len(self) else ():
            yield from map(_answer, batch.column("answer").to_pylist())


@reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
def _answer(row: Mapping[str, Any]) -> StoredAnswer:
    return StoredAnswer(tuple(row["tokens"]), row["cut"], parse_json(row["stated"]), row["exact"])
