"""Weighs losses by segment, and keeps their means for the log. Shapes: N positions, S segments."""

from collections.abc import Mapping, Sequence

import torch

from pipeline.distillation.processes import summed


class SegmentLosses:
    """Sums of the loss by segment since they were last taken. Tokens without a segment weigh 1 and are in no sum."""

    def __init__(self, names: Sequence[str], weights: Mapping[str, float], device: torch.device) -> None:
        self._names, self._weighed = names, bool(weights)
        of_each = [weights.get(name, 1.0) for name in names]
        self._weights_S = torch.tensor([*of_each, 1.0], dtype=torch.float32, device=device)
        self._sums_2S = torch.zeros(2, len(of_each) + 1, dtype=torch.float64, device=device)

    def weigh(self, loss_N: torch.Tensor, labels_N: torch.Tensor, counts_N: torch.Tensor | None = None) -> torch.Tensor:
        """The losses times the weights of their tokens. `labels_N`: see `segment_labels.token_labels`. `counts_N`: 1 where a
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
