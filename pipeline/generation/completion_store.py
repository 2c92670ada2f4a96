"""The completion store: what the target said, token by token, in fixed-width Arrow files that are memory-mapped.

A shard is two files. `NAME.tokens.arrow` has a row a token: its id, its log p at the sampling settings, and what is kept of the
target's distribution at temperature 1 (`distributions.Kept`, packed). `NAME.completions.arrow` has a row a completion and
says at which sampling tuple it was drawn and which token rows are its own. The second file is written last: a shard
without it does not exist.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.distributions import ENTRY_BYTES
from pipeline.speculation.sampling import GREEDY, Sampling

_TUPLE = ["temperature", "top_k", "top_p", "min_p"]
_COMPLETIONS = pa.schema(
    [
        ("id", pa.string()),
        ("split", pa.string()),
        ("domain", pa.string()),
        ("temperature", pa.float64()),
        ("top_k", pa.int32()),
        ("top_p", pa.float64()),
        ("min_p", pa.float64()),
        ("prompt", pa.list_(pa.int32())),
        ("first", pa.int64()),
        ("total", pa.int32()),
        ("length", pa.int32()),
        ("stopped", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class StoredCompletion:
    """One completion, its arrays views of the mapped file. N tokens, lookahead included; K entries of each distribution."""

    id: str  # of the prompt
    split: str
    domain: str
    sampling: Sampling  # that it was drawn at, and that log_p is under
    prompt: NDArray[np.int32]
    length: int  # tokens without the lookahead past the limit or past EOS
    stopped: bool  # by a stop token rather than the limit
    tokens: NDArray[np.int32]  # (N,)
    log_p: NDArray[np.float32]  # (N,), at the sampling settings
    entries: NDArray[np.uint8]  # (N, K, 3), of the distribution at temperature 1, see `distributions`
    certain: NDArray[np.uint8]  # (N,), entries that were not drawn
    rest_log_p: NDArray[np.float16]  # (N,), log of the mass outside the certain ones
    vocabulary: int  # what an entry is packed for

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy


def token_schema(kept: int, vocabulary: int) -> Any:
    """Arrow schema of a token row."""
    return pa.schema(
        [
            ("token", pa.int32()),
            ("log_p", pa.float32()),
            ("entries", pa.list_(pa.uint8(), kept * ENTRY_BYTES)),
            ("certain", pa.uint8()),
            ("rest_log_p", pa.float16()),
        ],
        metadata={"vocabulary": str(vocabulary)},
    )


def write_shard(directory: Path, name: str, spoken: Sequence[StoredCompletion]) -> None:
    """Write one shard; its second file appears last and in one step. The same completions give the same bytes."""
    schema = token_schema(spoken[0].entries.shape[1], spoken[0].vocabulary)

    def joined(attribute: str) -> Any:
        return np.concatenate([getattr(item, attribute) for item in spoken])

    entries = pa.array(joined("entries").reshape(-1))
    tokens = pa.record_batch(
        [
            pa.array(joined("tokens")),
            pa.array(joined("log_p")),
            pa.FixedSizeListArray.from_arrays(entries, type=schema.field("entries").type),
            pa.array(joined("certain")),
            pa.array(joined("rest_log_p")),
        ],
        schema=schema,
    )
    totals = [len(item.tokens) for item in spoken]
    completions = pa.record_batch(
        [
            [item.id for item in spoken],
            [item.split for item in spoken],
            [item.domain for item in spoken],
            *_columns([item.sampling for item in spoken]),
            [item.prompt for item in spoken],
            np.concatenate([[0], np.cumsum(totals)[:-1]]).astype(np.int64),
            pa.array(totals, pa.int32()),
            pa.array([item.length for item in spoken], pa.int32()),
            [item.stopped for item in spoken],
        ],
        schema=_COMPLETIONS,
    )
    _write(directory / f"{name}.tokens.arrow", tokens)
    _write(directory / f"{name}.completions.arrow", completions)


def canonical(sampling: Sampling) -> Sampling:
    """The one tuple that is stored for `sampling`: at temperature 0 the filters change nothing."""
    return GREEDY if sampling.greedy else sampling


def _columns(samplings: Sequence[Sampling]) -> list[Any]:
    kept = [canonical(sampling) for sampling in samplings]
    return [pa.array([getattr(item, name) for item in kept], _COMPLETIONS.field(name).type) for name in _TUPLE]


def _write(path: Path, batch: Any) -> None:
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    partial.replace(path)


def shard_exists(directory: Path, name: str) -> bool:
    return (directory / f"{name}.completions.arrow").exists()


def read_completions(
    directory: Path, splits: Collection[str] | None = None, sampling: Sampling | None = None, shards: str = ""
) -> Iterator[StoredCompletion]:
    """Every stored completion of these splits, drawn at `sampling`, in the order written, of shards whose names begin with
    `shards`; arrays are views of mapped memory. A shard's mapping goes with the last of its completions, so keep few of them.

    Raises UnderstudyError naming a file that is not whole.
    """
    for path, batch in _shards(directory, splits, sampling, shards):
        if batch.num_rows:
            tokens = _Columns(path.with_name(path.name.replace(".completions.", ".tokens.")))
            yield from map(tokens.completion, batch.to_pylist())


def stored_samplings(directory: Path, splits: Collection[str] | None = None) -> dict[Sampling, int]:
    """How many completions of these splits there are at each sampling tuple, in the order written."""
    found: Counter[Sampling] = Counter()
    for _, batch in _shards(directory, splits):
        found.update(map(_sampling, batch.select(_TUPLE).to_pylist()))
    return dict(found)


def _shards(
    directory: Path, splits: Collection[str] | None, sampling: Sampling | None = None, prefix: str = ""
) -> Iterator[tuple[Path, Any]]:
    """Each shard's file of completions, with its rows that were asked for."""
    for path in sorted(directory.glob(f"{prefix}*.completions.arrow")):
        batch = _open(path)
        if batch.schema != _COMPLETIONS:
            raise _other_version(path)
        chosen_N = np.ones(batch.num_rows, dtype=bool)
        if splits is not None:
            chosen_N &= np.isin(batch["split"].to_pylist(), list(splits))
        if sampling is not None:
            for name in _TUPLE:
                chosen_N &= batch[name].to_numpy() == getattr(canonical(sampling), name)
        yield path, batch.filter(pa.array(chosen_N))


def _sampling(row: dict[str, Any]) -> Sampling:
    return Sampling(*(row[name] for name in _TUPLE))


class _Columns:
    """The columns of a token file as numpy views, without a copy."""

    def __init__(self, path: Path) -> None:
        batch = _open(path)
        if "entries" not in batch.schema.names:
            raise _other_version(path)
        self.token = batch["token"].to_numpy()
        self.log_p = batch["log_p"].to_numpy()
        self.certain = batch["certain"].to_numpy()
        self.rest_log_p = batch["rest_log_p"].to_numpy()
        self.entries = batch["entries"].values.to_numpy().reshape(batch.num_rows, -1, ENTRY_BYTES)
        self.vocabulary = int(batch.schema.metadata[b"vocabulary"])

    def completion(self, row: dict[str, Any]) -> StoredCompletion:
        rows = slice(row["first"], row["first"] + row["total"])
        return StoredCompletion(
            row["id"],
            row["split"],
            row["domain"],
            _sampling(row),
            np.array(row["prompt"], dtype=np.int32),
            row["length"],
            row["stopped"],
            self.token[rows],
            self.log_p[rows],
            self.entries[rows],
            self.certain[rows],
            self.rest_log_p[rows],
            self.vocabulary,
        )


def _other_version(path: Path) -> UnderstudyError:
    return UnderstudyError(f"{path}: written by another version; delete its directory and run again")


def _open(path: Path) -> Any:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return reader.get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnderstudyError(
            f"{path}: not a whole completion file ({error}); delete its directory and run again"
        ) from None
