"""The model's own forward on a batch of rows of different lengths, with a `RaggedCache`. Does not depend on decoding rules.

It gives the model the attention mask and the positions of every row. Not every architecture uses both, so `proof.py` compares
its logits with single passes before it is used.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models.attention_layers import attention_windows
from pipeline.models.devices import upload
from pipeline.models.placement import input_device
from pipeline.speculation.cache import RaggedCache, cache_argument, window_mask


class ModelForward:
    """`forward.Forward` for models with key-value caches."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self.model, self.vocabulary, self.device = model, vocabulary, input_device(model)
        config: Any = getattr(model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.windows = attention_windows(text)
        self.kinds = set(getattr(text, "layer_types", None) or self.windows)  # of attention layers
        self.cache_argument = cache_argument(model)
        self.adds_mask = getattr(config, "_attn_implementation", None) == "eager"

    def allocate(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: RaggedCache, keep: int) -> torch.Tensor:
        first_B1 = upload(first, self.device).unsqueeze(1)
        slots_BT = first_B1 + torch.arange(ids_BT.shape[1], device=self.device)
        causal = caches.set_slots(slots_BT, max(first) + ids_BT.shape[1])
        output = self.model(
            input_ids=ids_BT,
            position_ids=slots_BT,
            attention_mask=self._masks(causal, slots_BT),
            use_cache=True,
            logits_to_keep=keep,
            **{self.cache_argument: caches},
        )
        logits: torch.Tensor = output.logits[..., : self.vocabulary]
        return logits

    def select(self, caches: RaggedCache, rows: Sequence[int]) -> None:
        caches.select(rows)

    def _masks(self, causal: torch.Tensor, slots_BT: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """One mask, or one for each kind of layer where kinds differ."""
        if not self.windows:
            return self._as_added(causal)
        masks = {
            kind: self._as_added(
                window_mask(causal, slots_BT, kind, self.windows[kind]) if kind in self.windows else causal
            )
            for kind in self.kinds
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_added(self, mask: torch.Tensor) -> torch.Tensor:
        """transformers' eager attention adds the mask to the scores; a boolean mask would add 0 or 1."""
        if not self.adds_mask:
            return mask
        blocked = torch.finfo(self.model.dtype).min
        return torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device).masked_fill(~mask, blocked)
