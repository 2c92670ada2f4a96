"""Segments of training tokens: the number of each, its weight in the loss, and the mean loss of each for the log.

Shapes: N positions, S segments.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.distillation.processes import summed
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion

_ROUNDING = 1e-6


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


def segment_weights(completions: Iterable[StoredCompletion], shares: Mapping[str, float]) -> dict[str, float]:
    """The weight of a token by its segment's name. The segments of `shares` get these shares of all weight, the others divide
    the rest as they divide tokens; the mean weight of a token is 1. Empty for no shares.

    UsageError for a segment that no completion has, and unless the shares sum to 1 exactly when every segment has one.
    """
    if not shares:
        return {}
    tokens = segment_tokens(completions)
    if unknown := sorted(set(shares) - set(tokens)):
        known = ", ".join(sorted(tokens)) or "none"
        raise UsageError(
            f"distill.segment_shares: no train completion has the segment '{unknown[0]}'; segments are: {known} "
            "(docs/examination.md has how they are found)"
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


class SegmentLosses:
    """Sums of the loss by segment since they were last taken. Tokens without a segment weigh 1 and are in no sum."""

    def __init__(self, names: Sequence[str], weights: Mapping[str, float], device: torch.device) -> None:
        self._names, self._weighed = names, bool(weights)
        of_each = [weights.get(name, 1.0) for name in names]
        self._weights_S = torch.tensor([*of_each, 1.0], dtype=torch.float32, device=device)
        self._sums_2S = torch.zeros(2, len(of_each) + 1, dtype=torch.float64, device=device)

    def weigh(self, loss_N: torch.Tensor, labels_N: torch.Tensor, counts_N: torch.Tensor | None = None) -> torch.Tensor:
        """The losses times the weights of their tokens. `labels_N`: see `token_labels`. `counts_N`: 1 where a
        position is in the loss, 0 where it is not; None: all are."""
        inside_NS = (labels_N[:, None] == torch.arange(len(self._weights_S), device=labels_N.device)).double()
        inside_NS = inside_NS if counts_N is None else inside_NS * counts_N[:, None]
        self._sums_2S[0] += (loss_N.detach().double()[:, None] * inside_NS).sum(
            0
        )  # index_add_ has no fixed order on a GPU
        self._sums_2S[1] += inside_NS.sum(0)
        return loss_N * self._weights_S[labels_N] if self._weighed else loss_N

    def take(self) -> dict[str, float]:
        """The mean loss of a token of each segment, without weights, since the last call, over all processes of the training;
        empty where there is one segment."""
        sums_S, counts_S = summed(self._sums_2S).tolist()
        self._sums_2S.zero_()
        if len(self._names) < 2:
            return {}
        return {name: total / count for name, total, count in zip(self._names, sums_S, counts_S, strict=False) if count}
