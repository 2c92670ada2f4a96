"""Weights of segments in the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.distillation.segment_labels import token_labels
from pipeline.distillation.segment_weights import segment_weights
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from tests.fakes import stored_completion

_NAMES = ("answer", "thinking", "tool_call")


def _labelled(labels: Sequence[int], past: int = 0) -> StoredCompletion:
    tokens = list(range(3, 3 + len(labels) + past))
    item = stored_completion([1, 2], tokens, length=len(labels))
    return replace(item, segments=np.array([*labels, *[0] * past], dtype=np.uint8), segment_names=_NAMES)


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ({}, {}),
        ({"thinking": 0.5}, {"thinking": 2.0, "answer": 2 / 3, "tool_call": 2 / 3}),
        ({"answer": 1.0, "thinking": 0.0, "tool_call": 0.0}, {"answer": 2.0, "thinking": 0.0, "tool_call": 0.0}),
    ],
)
def test_weights_give_the_shares(shares: Mapping[str, float], found: Mapping[str, float]) -> None:
    rows = [_labelled([0, 0, 0, 1]), _labelled([0, 1, 2, 2], past=3)]
    weights = segment_weights(rows, shares)
    assert weights == pytest.approx(found)
    each = np.array([weights.get(name, 1.0) for name in _NAMES])[token_labels(rows, _NAMES)]
    labels = np.concatenate([item.segments[: item.length] for item in rows if item.segments is not None])
    if weights:
        assert each.mean() == pytest.approx(1)
    for name, share in shares.items():
        assert each[labels == _NAMES.index(name)].sum() / each.sum() == pytest.approx(share)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"code": 0.5}, "no train completion has the segment 'code'; segments are: answer, thinking"),
        ({"answer": 1.0}, "sum to 1, and there are other segments"),
        ({"answer": 0.5, "thinking": 0.2}, "sum to 0.7, and there is no other segment"),
    ],
)
def test_shares_that_cannot_be(shares: Mapping[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        segment_weights([_labelled([0, 1])], shares)


def test_completions_without_segments_have_none() -> None:
    with pytest.raises(UsageError, match="segments are: none"):
        segment_weights([stored_completion([1], [2])], {"answer": 0.5})
