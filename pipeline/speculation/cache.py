"""A key-value cache for sequences of different lengths, for models that run their own forward. Does not depend on decoding rules.

Slot s of a row always holds position s of that row's sequence. Rejected tokens need no cropping: the causal mask hides
later slots, and a slot is overwritten before any query can attend to it.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from transformers import Cache

from pipeline.models.devices import upload


def cache_argument(module: Any) -> str:
    """What the forward of a model or layer calls its cache: transformers 5.24 renamed it."""
    called = getattr(module, "forward", module)
    return "cache" if "cache" in signature(called).parameters else "past_key_values"


def window_mask(mask: torch.Tensor, slots_BT: torch.Tensor, kind: str, size: int) -> torch.Tensor:
    """`mask` (B, 1, T, S) restricted to the slots that a layer of `kind` attends to."""
    slots_S, queries_BT = torch.arange(mask.shape[-1], device=mask.device), slots_BT[:, None, :, None]
    if kind == "chunked_attention":
        return mask & (slots_S // size == queries_BT // size)
    return mask & (slots_S > queries_BT - size)


class RaggedCache(Cache):  # type: ignore[misc]
    """Preallocated keys and values, (B, S, heads, head width) a layer, allocated at the first write."""

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._slots_BT = torch.empty(0)
        self._places: dict[
            torch.device, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # rows (B, 1) and slots (B, T) by device
        self._visible = 0

    def set_slots(self, slots_BT: torch.Tensor, visible: int) -> torch.Tensor:
        """Set the slots that the next forward pass writes; `visible` is the highest of them plus one.

        Returns the attention mask (B, 1, T, visible): a query at slot s attends to slots 0..s.
        """
        if visible > self.capacity:
            raise ValueError(f"slot {visible - 1} is beyond the cache's capacity of {self.capacity}")
        self._slots_BT, self._visible = slots_BT, visible
        self._places.clear()
        return torch.arange(visible, device=slots_BT.device)[None, None, None, :] <= slots_BT[:, None, :, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention with (B, heads, T, width). Returns all visible slots, (B, heads, S, width)."""
        if layer_idx not in self._keys:
            for tensors, states in ((self._keys, key_states), (self._values, value_states)):
                _, heads, _, width = states.shape  # values may be narrower than keys
                tensors[layer_idx] = states.new_zeros(self.rows, self.capacity, heads, width)
        keys, values, place = self._keys[layer_idx], self._values[layer_idx], self._place(key_states.device)
        keys[place] = key_states.transpose(1, 2)
        values[place] = value_states.transpose(1, 2)
        return keys[:, : self._visible].transpose(1, 2), values[:, : self._visible].transpose(1, 2)

    def _place(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The place at which the pass writes, for a layer on this device: layers may lie on several."""
        if device not in self._places:
            self._places[device] = (torch.arange(self.rows, device=device).unsqueeze(1), self._slots_BT.to(device))
        return self._places[device]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        for tensors in (self._keys, self._values):
            for layer, tensor in tensors.items():  # layers may lie on several devices
                tensors[layer] = tensor[upload(rows, tensor.device)]
        self.rows = len(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._visible

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._visible, 0
