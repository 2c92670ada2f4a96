"""Labels the tokens of stored completions. Torch-free.

Shards are labelled once they are complete, so that what generates them need not know of segments.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_files import completion_files
from pipeline.generation.completion_store import read_shard
from pipeline.generation.segment_files import segment_file, write_segments


class Labels(Protocol):
    """What `models.segmenter.Segmenter` gives."""

    @property
    def names(self) -> Sequence[str]: ...

    def labels(self, prompt: Sequence[int], tokens: Sequence[int], stopped: bool) -> NDArray[np.uint8]: ...


def label_shards(directory: Path, segmenter: Labels) -> None:
    """Label the tokens of every complete shard that is not labelled yet; tokens past a completion's end get its last label.
    Nothing is written where there is one segment."""
    if len(segmenter.names) == 1:
        return
    for path in completion_files(directory):
        shard = path.name.removesuffix(".completions.arrow")
        if segment_file(directory, shard).exists():
            continue
        parts = [np.zeros(0, np.uint8)]
        for item in read_shard(path):
            labels = segmenter.labels(item.prompt.tolist(), item.tokens[: item.length].tolist(), item.stopped)
            parts += [labels, np.repeat(labels[-1:], len(item.tokens) - item.length)]
        write_segments(directory, shard, segmenter.names, np.concatenate(parts))
