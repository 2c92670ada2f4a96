"""A key-value cache for sequences of different lengths, for models that run their own forward. Knows no decoding rule.

Slot s of a row always holds position s of that row's sequence. Rejected tokens need no cropping: the causal mask hides
later slots, and a slot is overwritten before any query can attend to it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache


def attention_window(config: Any) -> int | None:
    """The sliding window in tokens (including the query's own), or None for a model without sliding-window layers."""
    window: int | None = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    slides = getattr(config, "use_sliding_window", True) and "sliding_attention" in layers
    return window if slides else None


class RaggedCache(Cache):  # type: ignore[misc]
    """Preallocated keys and values, (B, S, heads, head width) a layer, allocated at the first write."""

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._rows_B1 = torch.arange(rows).unsqueeze(1)
        self._slots_BT = torch.empty(0)
        self._visible = 0

    def set_slots(self, slots_BT: torch.Tensor, visible: int) -> torch.Tensor:
        """Set the slots that the next forward pass writes; `visible` is the highest of them plus one.

        Returns the attention mask (B, 1, T, visible): a query at slot s attends to slots 0..s.
        """
        if visible > self.capacity:
            raise ValueError(f"slot {visible - 1} is beyond the cache's capacity of {self.capacity}")
        self._slots_BT, self._visible = slots_BT, visible
        self._rows_B1 = self._rows_B1.to(slots_BT.device)
        return torch.arange(visible, device=slots_BT.device)[None, None, None, :] <= slots_BT[:, None, :, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention with (B, heads, T, width). Returns all visible slots, (B, heads, S, width)."""
        if layer_idx not in self._keys:
            _, heads, _, width = key_states.shape
            shape = (self.rows, self.capacity, heads, width)
            self._keys[layer_idx] = key_states.new_zeros(shape)
            self._values[layer_idx] = value_states.new_zeros(shape)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows_B1, self._slots_BT] = key_states.transpose(1, 2)
        values[self._rows_B1, self._slots_BT] = value_states.transpose(1, 2)
        return keys[:, : self._visible].transpose(1, 2), values[:, : self._visible].transpose(1, 2)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(rows)
        for tensors in (self._keys, self._values):
            for layer, tensor in tensors.items():
                tensors[layer] = tensor[index.to(tensor.device)]
        self.rows = len(rows)
        self._rows_B1 = torch.arange(self.rows).unsqueeze(1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._visible

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._visible, 0
