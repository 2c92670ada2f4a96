"""The weight of each segment in the loss, so that it has a given share of it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion

_ROUNDING = 1e-6


def segment_weights(completions: Iterable[StoredCompletion], shares: Mapping[str, float]) -> dict[str, float]:
    """The weight of a token by its segment's name. The segments of `shares` get these shares of all weight, the others divide
    the rest as they divide tokens; the mean weight of a token is 1. Empty for no shares.

    UsageError for a segment that no completion has, and unless the shares sum to 1 exactly when every segment has one.
    """
    if not shares:
        return {}
    tokens = Counter[str]()
    for item in completions:
        if item.segments is not None:
            counts = np.bincount(item.segments[: item.length], minlength=len(item.segment_names)).tolist()
            tokens.update({name: count for name, count in zip(item.segment_names, counts, strict=True) if count})
    if unknown := sorted(set(shares) - set(tokens)):
        found = ", ".join(sorted(tokens)) or "none"
        raise UsageError(
            f"distill.segment_shares: no train completion has the segment '{unknown[0]}'; segments are: {found} "
            "(docs/examination.md says how they are found)"
        )
    left = 1 - sum(shares.values())
    others = {name: count for name, count in tokens.items() if name not in shares}
    if bool(others) != (left > _ROUNDING):
        raise UsageError(
            f"distill.segment_shares sum to {1 - left:g}, and "
            + (f"there are other segments ({', '.join(sorted(others))})" if others else "there is no other segment")
            + "; they must sum to 1 if every segment is named, otherwise to less"
        )
    total, rest = tokens.total(), sum(others.values())
    of_others = {name: left * count / rest for name, count in others.items()}
    return {name: share * total / tokens[name] for name, share in (dict(shares) | of_others).items()}


def token_weights(items: Sequence[StoredCompletion], weights: Mapping[str, float]) -> NDArray[np.float32]:
    """The weight of every token of these completions, one after the other. Tokens without a segment weigh 1."""
    return np.concatenate(
        [
            np.ones(item.length, dtype=np.float32)
            if item.segments is None
            else np.array([weights.get(name, 1.0) for name in item.segment_names], dtype=np.float32)[
                item.segments[: item.length]
            ]
            for item in items
        ]
    )
