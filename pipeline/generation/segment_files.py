"""`NAME.segments.arrow`: the segment of every token of a shard, a byte each. Torch-free.

A shard whose tokens are all of the answer may have none.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.generation.completion_files import open_batch, other_version
from pipeline.store.atomic import replacing
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

_NAMES = b"names"


def write_segments(directory: Path, shard: str, names: Sequence[str], labels_T: NDArray[np.uint8]) -> None:
    """The labels of a shard's tokens, in their order, each the place of a name in `names`."""
    schema = pa.schema([("segment", pa.uint8())], metadata={_NAMES: json.dumps(list(names))})
    with (
        replacing(segment_file(directory, shard)) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        writer.write_batch(pa.record_batch([pa.array(labels_T)], schema=schema))


def segment_file(directory: Path, shard: str) -> Path:
    return directory / f"{shard}.segments.arrow"


class ShardSegments(NamedTuple):
    """The labels of a shard's N tokens, memory-mapped, and the names by label."""

    labels_N: NDArray[np.uint8]
    names: tuple[str, ...]


@reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
def segments_of(directory: Path, shard: str, tokens: int) -> ShardSegments | None:
    """The labels of a shard; None where it has none. UnderstudyError for a damaged file, or of another number of tokens."""
    path = segment_file(directory, shard)
    if not path.exists():
        return None
    batch = open_batch(path)
    try:
        names = tuple(str(name) for name in parse_json(batch.schema.metadata[_NAMES]))
        labels: NDArray[np.uint8] = batch["segment"].to_numpy()
    except (KeyError, TypeError, ValueError):
        raise other_version(path) from None
    if len(labels) != tokens or labels.max(initial=0) >= len(names):
        raise other_version(path)
    return ShardSegments(labels, names)
