"""A model with its KV cache, as the decoder uses it: token ids and their slots in, logits out.

Three implementations: `llama_forward.LlamaForward` for Llama-shaped models, `model_forward.ModelForward` (the model's own
forward on a batch) and `row_forward.RowForward` (the model's own forward and cache, one row at a time). `choice.py` chooses.
Does not depend on decoding rules. Shapes: B rows, T tokens of a row, S visible slots, V shared tokens.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pipeline.speculation.hidden_states import Features, StateRecorder

PREFILL = 512  # tokens of a pass over a prompt


class CachedModel:
    """Target or draft of one decode, with its KV cache. Slot s of a row always holds position s of its sequence."""

    def __init__(self, model: "Forward", rows: int, capacity: int, prefill: int = PREFILL) -> None:
        """`prefill`: the most tokens of a row in one pass over the prompts."""
        self.model, self.device, self._prefill = model, model.device, prefill
        self.features: Features | None = None  # of the last pass, where the model records them
        self.caches = model.allocate(rows, capacity)
        self.seen = [0] * rows  # how many slots of each row, from slot 0 on, are valid

    def logits(self, ids_BT: torch.Tensor, first: Sequence[int], keep: int) -> torch.Tensor:
        """Run `ids_BT` at slots first[b]..first[b] + T - 1. Returns logits of the last `keep` positions, (B, keep, V), on
        the device of `ids_BT`."""
        device = ids_BT.device
        logits = self.model.forward(ids_BT.to(self.device), first, self.caches, keep).to(device)
        self.features = getattr(self.model, "features", None) or None
        return logits

    def fill_cache(self, ids_BS: torch.Tensor, lengths: Sequence[int]) -> None:
        """Process all tokens of each row but the last, for rows whose cache lacks more than one of them.

        This is the prefill; it also processes the tokens that a draft missed while speculation was off. `ids_BS` holds the
        sequences, padded to a common length; `lengths` their numbers of tokens. Padding is processed too: its slots are
        overwritten before any token attends to them. `features` are of all that was processed.
        """
        behind = [row for row, length in enumerate(lengths) if length - self.seen[row] > 2 or not self.seen[row]]
        if behind and (end := max(lengths[row] for row in behind) - 1) > 0:
            begin, passes = min(self.seen[row] for row in behind), list[Features]()
            for first in range(begin, end, self._prefill):  # in chunks: the attention mask is quadratic in the chunk
                self.logits(ids_BS[:, first : min(first + self._prefill, end)], [first] * len(lengths), keep=1)
                passes += [self.features] if self.features is not None else []
            if passes:
                self.features = {
                    layer: torch.cat([features[layer] for features in passes], dim=1) for layer in passes[0]
                }
            # A row that lacks only one token was not in `behind`; if that token lies before `begin`, it is still missing.
            self.seen = [
                max(seen, min(end, length - 1)) if seen >= begin else seen
                for seen, length in zip(self.seen, lengths, strict=True)
            ]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.model.select(self.caches, rows)
        self.seen = [self.seen[row] for row in rows]


class RecordedForward:
    """`Forward` that keeps hidden states of each pass. `inner` is computed by the model's own modules, on all rows at once."""

    def __init__(self, inner: "Forward", recorder: StateRecorder) -> None:
        self._inner, self._recorder, self.device = inner, recorder, inner.device
        self.features: Features = {}  # of the last pass

    def allocate(self, rows: int, capacity: int) -> Any:
        return self._inner.allocate(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Any, keep: int) -> torch.Tensor:
        with self._recorder.recording() as passes:
            logits = self._inner.forward(ids_BT, first, caches, keep)
        (self.features,) = passes
        return logits

    def select(self, caches: Any, rows: Sequence[int]) -> None:
        self._inner.select(caches, rows)


class Forward(Protocol):
    """A forward pass over a model's weights. Decodes share the weights; each decode has its own caches."""

    device: torch.device

    def allocate(self, rows: int, capacity: int) -> Any:
        """Empty caches for `rows` sequences of up to `capacity` tokens."""

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Any, keep: int) -> torch.Tensor:
        """Run `ids_BT` at slots first[b] .. first[b] + T - 1 of each row b. Writes keys and values to these slots of
        `caches`; a token attends to its own slot and the slots before it, as far as the model's attention reaches. Returns logits
        of the last `keep` of the T positions, (B, keep, V)."""

    def select(self, caches: Any, rows: Sequence[int]) -> None:
        """Keep only these rows of the caches, in this order."""
