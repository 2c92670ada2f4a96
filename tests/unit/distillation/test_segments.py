"""Segments of training tokens: which token is of which, what it weighs, and what the log says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.distillation.dataset import PackedCompletions
from pipeline.distillation.segments import SegmentLosses, segment_weights, token_labels
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from tests.fakes import stored_completion


def _labelled(
    labels: Sequence[int], names: tuple[str, ...] = ("answer", "thinking"), past: int = 0
) -> StoredCompletion:
    item = stored_completion([1, 2], list(range(3, 3 + len(labels) + past)), length=len(labels))
    return replace(item, segments=np.array([*labels, *[0] * past], dtype=np.uint8), segment_names=names)


def test_a_batch_has_the_segment_of_every_position() -> None:
    """In the order of its rows, without the lookahead. Another shard may have its names in another order."""
    rows = [
        _labelled([0, 1, 1], past=2),
        _labelled([2], ("thinking", "aside", "answer")),
        stored_completion([1], [2, 3]),
    ]
    documents = PackedCompletions(rows, together=False)
    batch = documents.collate([{"row": 1}, {"row": 2}, {"row": 0}])

    assert ("answer", "thinking") == documents.segments
    assert [0, 2, 2, 0, 1, 1] == batch["segments"].tolist()
    assert len(batch["segments"]) == len(batch["predicts"])


def test_completions_without_labels_have_none() -> None:
    """Those of one segment have it: it may have a weight. The log then has nothing by segment."""
    plain, one = PackedCompletions([stored_completion([1], [2])]), PackedCompletions([_labelled([0, 0], past=1)])
    losses = SegmentLosses(one.segments, {"answer": 0.5, "thinking": 2.0}, torch.device("cpu"))

    assert ((), ("answer",)) == (plain.segments, one.segments)
    assert "segments" not in plain.collate([{"row": 0}])
    assert [0.5, 0.5] == losses.weigh(torch.ones(2), one.collate([{"row": 0}])["segments"]).tolist()
    assert {} == losses.take()


def test_means_are_of_tokens_and_without_weights() -> None:
    """Since the last call. Tokens without a segment are in none; they weigh 1."""
    losses = SegmentLosses(("answer", "thinking", "tool_call"), {"answer": 0.5, "thinking": 3.0}, torch.device("cpu"))
    labels_N = torch.tensor([0, 1, 3, 0, 2])
    loss_N = torch.tensor([1.0, 2.0, 9.0, 4.0, 5.0], requires_grad=True)
    weighed_N = losses.weigh(loss_N, labels_N)
    losses.weigh(torch.tensor([7.0]), torch.tensor([0]))
    weighed_N.sum().backward()  # type: ignore[no-untyped-call]

    assert [0.5, 6.0, 9.0, 2.0, 5.0] == weighed_N.tolist()
    assert loss_N.grad is not None
    assert [0.5, 3.0, 1.0, 0.5, 1.0] == loss_N.grad.tolist()
    assert {"answer": 4.0, "thinking": 2.0, "tool_call": 5.0} == losses.take()
    assert {} == losses.take()


def test_positions_that_do_not_count_are_in_no_mean() -> None:
    """As those that no round of a head reaches; they are weighed like others, and counted by whoever asked."""
    losses = SegmentLosses(("answer", "thinking"), {}, torch.device("cpu"))
    loss_N, counts_N = torch.tensor([1.0, 8.0, 3.0, 9.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    losses.weigh(loss_N, torch.tensor([0, 0, 1, 1]), counts_N)
    losses.weigh(loss_N, torch.tensor([0, 0, 1, 1]), 1 - counts_N)

    assert {"answer": 4.5, "thinking": 6.0} == losses.take()
    losses.weigh(loss_N, torch.tensor([0, 0, 1, 1]), counts_N)
    assert {"answer": 1.0, "thinking": 3.0} == losses.take()


def test_without_weights_losses_are_the_same_numbers() -> None:
    """Bit by bit: what is logged changes no training."""
    losses = SegmentLosses(("answer", "thinking"), {}, torch.device("cpu"))
    loss_N = torch.rand(50)

    assert loss_N is losses.weigh(loss_N, torch.zeros(50, dtype=torch.long))
    assert pytest.approx(float(loss_N.mean())) == losses.take()["answer"]


def test_labels_without_a_place_are_behind_the_last() -> None:
    """Such as a segment of one completion that others lack."""
    assert [0, 1, 1] == token_labels([_labelled([0, 1]), stored_completion([1], [2])], ("answer",)).tolist()


_NAMES = ("answer", "thinking", "tool_call")


def _of_segments(labels: Sequence[int], past: int = 0) -> StoredCompletion:
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
    rows = [_of_segments([0, 0, 0, 1]), _of_segments([0, 1, 2, 2], past=3)]
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
        segment_weights([_of_segments([0, 1])], shares)


def test_completions_without_segments_have_none() -> None:
    with pytest.raises(UsageError, match="segments are: none"):
        segment_weights([stored_completion([1], [2])], {"answer": 0.5})
