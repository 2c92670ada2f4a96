"""The segments of training tokens, as numbers. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_store import StoredCompletion


def segment_tokens(completions: Iterable[StoredCompletion]) -> Counter[str]:
    """How many tokens of these completions each segment has; those that have none are left out."""
    tokens = Counter[str]()
    for item in completions:
        if item.segments is not None:
            counts = np.bincount(item.segments[: item.length], minlength=len(item.segment_names)).tolist()
            tokens.update({name: count for name, count in zip(item.segment_names, counts, strict=True) if count})
    return tokens


def token_labels(items: Sequence[StoredCompletion], names: Sequence[str]) -> NDArray[np.int64]:
    """The place in `names` of the segment of every token of these completions, one after the other; behind the last place for
    a token without a label, such as of a draft's completions."""
    places = {name: place for place, name in enumerate(names)}
    return np.concatenate(
        [
            np.full(item.length, len(names), dtype=np.int64)
            if item.segments is None
            else np.array([places.get(name, len(names)) for name in item.segment_names], dtype=np.int64)[
                item.segments[: item.length]
            ]
            for item in items
        ]
    )
