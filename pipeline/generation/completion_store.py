"""The completion store: the target's completions as token ids and distributions, in memory-mapped Arrow files.

A shard is two files. `NAME.tokens.arrow` has one row per token: its id, its log p under the sampling settings, and the target's
sparse distribution at temperature 1 (`distributions.SparseDistribution`, packed). `NAME.completions.arrow` has one row per
completion: its sampling settings and the range of its token rows. The second file is written last: a shard without it is
incomplete and ignored. Labels of the tokens may follow in a third (`segment_files.py`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.generation.completion_files import completion_files, open_batch, other_version
from pipeline.generation.distributions import ENTRY_BYTES
from pipeline.generation.segment_files import segments_of
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.store.atomic import replacing

TOKENIZER = "tokenizer"  # the directory of the tokenizer, so that an artifact can be examined without its pair
_TUPLE = ["temperature", "top_k", "top_p", "min_p"]
_COMPLETIONS = pa.schema(
    [
        ("id", pa.string()),
        ("text_id", pa.string()),
        ("conversation", pa.string()),
        ("split", pa.string()),
        ("domain", pa.string()),
        ("mode", pa.string()),
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
_PLAIN = [name for name in _COMPLETIONS.names if name not in (*_TUPLE, "prompt")]


@dataclass(frozen=True, kw_only=True)
class StoredCompletion:
    """One completion; its arrays are views of the memory-mapped file. N tokens including the lookahead, K entries each."""

    id: str  # of the prompt
    text_id: str  # of the prompt, see `corpus.same_text`
    conversation: str  # of the prompt: that of the other turns of its chat
    split: str
    domain: str
    sampling: Sampling  # of the tokens and of log_p
    prompt: NDArray[np.int32]
    length: int  # tokens without the lookahead past the limit or past EOS
    stopped: bool  # at a stop token, not at the limit
    tokens: NDArray[np.int32]  # (N,)
    log_p: NDArray[np.float32]  # (N,), under the sampling settings
    entries: NDArray[np.uint8]  # (N, K, 3), of the distribution at temperature 1, see `distributions`
    certain: NDArray[np.uint8]  # (N,), number of top entries (the others were sampled)
    rest_log_p: NDArray[np.float16]  # (N,), log of the mass outside the top entries
    vocabulary: int  # needed to unpack the entries
    mode: str = ""  # of the prompt's chat template, see `corpus.modes`
    segments: NDArray[np.uint8] | None = None  # (N,), labels, see `segment_files`; None: all are of one
    segment_names: tuple[str, ...] = ()  # by label
    shard: str = ""  # the name of the shard that it was read from

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy


def token_schema(kept: int, vocabulary: int) -> Any:
    """Arrow schema of the token file."""
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


def write_shard(
    directory: Path, name: str, completions: Sequence[StoredCompletion], facts: Mapping[str, str] | None = None
) -> None:
    """Write one shard; its second file is written last and atomically. Equal completions give equal bytes. `facts` about the
    shard are given back by `shard_facts`."""
    schema = token_schema(completions[0].entries.shape[1], completions[0].vocabulary)

    def joined(attribute: str) -> Any:
        return np.concatenate([getattr(item, attribute) for item in completions])

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
    totals = [len(item.tokens) for item in completions]
    completion_rows = pa.record_batch(
        [
            [item.id for item in completions],
            [item.text_id for item in completions],
            [item.conversation for item in completions],
            [item.split for item in completions],
            [item.domain for item in completions],
            [item.mode for item in completions],
            *_sampling_columns([item.sampling for item in completions]),
            [item.prompt for item in completions],
            np.concatenate([[0], np.cumsum(totals)[:-1]]).astype(np.int64),
            pa.array(totals, pa.int32()),
            pa.array([item.length for item in completions], pa.int32()),
            [item.stopped for item in completions],
        ],
        schema=_COMPLETIONS.with_metadata(dict(facts or {})),
    )
    for file, batch in zip(shard_files(name), (tokens, completion_rows), strict=True):
        _write(directory / file, batch)


def canonical(sampling: Sampling) -> Sampling:
    """The stored form of `sampling`: at temperature 0 the filters have no effect and are dropped."""
    return GREEDY if sampling.greedy else sampling


def _sampling_columns(samplings: Sequence[Sampling]) -> list[Any]:
    kept = [canonical(sampling) for sampling in samplings]
    return [pa.array([getattr(item, name) for item in kept], _COMPLETIONS.field(name).type) for name in _TUPLE]


def _write(path: Path, batch: Any) -> None:
    with (
        replacing(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def shard_files(name: str) -> tuple[str, str]:
    """The files of a shard, in the order in which they are written."""
    return f"{name}.tokens.arrow", f"{name}.completions.arrow"


def shard_exists(directory: Path, name: str) -> bool:
    """Whether the shard is complete: its second file is written last."""
    return (directory / shard_files(name)[-1]).exists()


def read_completions(
    directory: Path, splits: Collection[str] | None = None, sampling: Sampling | None = None, shards: str = ""
) -> Iterator[StoredCompletion]:
    """Read the completions stored in `directory`, in the order in which they were written.

    Only those of `splits` (None: all), with the settings `sampling` (None: all), from shards whose names begin with `shards`.
    Arrays are views of the memory-mapped file, which stays mapped while one of its completions is referenced. Raises
    UnderstudyError that names a damaged file, or a file of another version.
    """
    for path, batch, rows in selected_rows(directory, splits, sampling, shards):
        yield from _completions(path, batch, rows)


def read_shard(
    path: Path, splits: Collection[str] | None = None, sampling: Sampling | None = None
) -> Iterator[StoredCompletion]:
    """`read_completions` of one shard, by its completion file."""
    yield from _completions(path, *_selected(path, splits, sampling))


def stored_shards(directory: Path, split: str, sampling: Sampling) -> dict[Path, int]:
    """The completion file of each shard that holds completions of a split at `sampling`, in order, with their number."""
    return {path: len(rows) for path, _, rows in selected_rows(directory, {split}, sampling) if len(rows)}


def _completions(path: Path, batch: Any, rows: NDArray[np.intp]) -> Iterator[StoredCompletion]:
    """The completions that these rows of the completion file `path` describe."""
    if len(rows):
        tokens, taken = TokenColumns(path), batch.take(pa.array(rows))
        for row, sampling in zip(taken.to_pylist(), samplings_of(taken), strict=True):
            prompt = np.array(row["prompt"], dtype=np.int32)
            yield tokens.completion(**{name: row[name] for name in _PLAIN}, sampling=sampling, prompt=prompt)


def stored_samplings(directory: Path, splits: Collection[str] | None = None) -> dict[Sampling, int]:
    """The number of completions of these splits for each sampling settings, in the order written."""
    counts: Counter[Sampling] = Counter()
    for _, batch, rows in selected_rows(directory, splits):
        counts.update(samplings_of(batch.select(_TUPLE).take(pa.array(rows))))
    return dict(counts)


def stored_conversations(directory: Path, split: str, sampling: Sampling) -> Iterator[str]:
    """The conversation of each completion of a split at `sampling`, in the order written."""
    for _, batch, rows in selected_rows(directory, {split}, sampling):
        yield from batch["conversation"].take(pa.array(rows)).to_pylist()


def selected_rows(
    directory: Path, splits: Collection[str] | None, sampling: Sampling | None = None, prefix: str = ""
) -> Iterator[tuple[Path, Any, NDArray[np.intp]]]:
    """The completion file of each shard, all its rows, and which of them `read_completions` reads."""
    for path in completion_files(directory, prefix):
        yield path, *_selected(path, splits, sampling)


def _selected(path: Path, splits: Collection[str] | None, sampling: Sampling | None) -> tuple[Any, NDArray[np.intp]]:
    batch = open_batch(path)
    if batch.schema != _COMPLETIONS:
        raise other_version(path)
    chosen_N = np.ones(batch.num_rows, dtype=bool)
    if splits is not None:
        chosen_N &= np.isin(batch["split"].to_pylist(), list(splits))
    if sampling is not None:
        for name in _TUPLE:
            chosen_N &= batch[name].to_numpy() == getattr(canonical(sampling), name)
    return batch, np.flatnonzero(chosen_N)


def samplings_of(batch: Any) -> list[Sampling]:
    """The sampling settings of each row of a completion file."""
    return [Sampling(*row) for row in zip(*(batch[name].to_pylist() for name in _TUPLE), strict=True)]


class TokenColumns:
    """The columns of a shard's token file as numpy views (zero-copy), for its N tokens: token, log_p, certain and rest_log_p
    (N,); entries (N, K, ENTRY_BYTES). UnderstudyError for a file of another version."""

    def __init__(self, completions: Path) -> None:
        """`completions`: the shard's completion file."""
        path = completions.with_name(completions.name.replace(".completions.", ".tokens."))
        batch = open_batch(path)
        if "entries" not in batch.schema.names:
            raise other_version(path)
        self.token = batch["token"].to_numpy()
        self.log_p = batch["log_p"].to_numpy()
        self.certain = batch["certain"].to_numpy()
        self.rest_log_p = batch["rest_log_p"].to_numpy()
        self.entries = batch["entries"].values.to_numpy().reshape(batch.num_rows, -1, ENTRY_BYTES)
        self.vocabulary = int(batch.schema.metadata[b"vocabulary"])
        self.shard = path.name.removesuffix(".tokens.arrow")
        self.segments = segments_of(path.parent, self.shard, batch.num_rows)

    def completion(self, *, first: int, total: int, **facts: Any) -> StoredCompletion:
        """The completion with these facts, whose tokens are first .. first + total - 1."""
        rows = slice(first, first + total)
        return StoredCompletion(
            **facts,
            tokens=self.token[rows],
            log_p=self.log_p[rows],
            entries=self.entries[rows],
            certain=self.certain[rows],
            rest_log_p=self.rest_log_p[rows],
            vocabulary=self.vocabulary,
            segments=None if self.segments is None else self.segments.labels_N[rows],
            segment_names=() if self.segments is None else self.segments.names,
            shard=self.shard,
        )
