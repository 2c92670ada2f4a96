"""A model with its KV cache, as the decoder uses it: token ids and their slots in, logits out.

Two implementations: `llama_forward.LlamaForward` for Llama-shaped models, and the model's own forward for all others.
Knows no decoding rule. Shapes: B rows, T tokens of a row, S visible slots, V shared tokens.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pipeline.errors import UsageError
from pipeline.speculation.cache import RaggedCache, attention_window
from pipeline.speculation.llama_forward import LlamaForward

_PREFILL = 512  # tokens of a pass over a prompt


class CachedModel:
    """Target or draft of one decode, with its KV cache. Slot s of a row always holds position s of its sequence."""

    def __init__(self, model: "Forward", rows: int, capacity: int, longest: int | None = None) -> None:
        """`longest` is the length of the longest sequence; the capacity may be larger. Raises UsageError for a sequence
        longer than the model's sliding window: both forwards use full attention, which is the same only within it."""
        if model.window is not None and (longest or capacity) > model.window:
            raise UsageError(
                f"a sequence of {longest or capacity} tokens (prompt and limit) exceeds the model's sliding window of "
                f"{model.window}; shorten the prompts or the limit"
            )
        self.model, self.device = model, model.device
        self.caches = model.allocate(rows, capacity)
        self.seen = [0] * rows  # how many slots of each row, from slot 0 on, are valid

    def logits(self, ids_BT: torch.Tensor, first: Sequence[int], keep: int) -> torch.Tensor:
        """Run `ids_BT` at slots first[b]..first[b] + T - 1. Returns logits of the last `keep` positions, (B, keep, V), on
        the device of `ids_BT`."""
        device = ids_BT.device
        return self.model.forward(ids_BT.to(self.device), first, self.caches, keep).to(device)

    def fill_cache(self, ids_BS: torch.Tensor, lengths: Sequence[int]) -> None:
        """Process all tokens of each row but the last, for rows that lack more than one: the prefill, and the tokens that a
        draft missed while speculation was off. Shorter rows also process padding; those slots are overwritten before any
        query can attend to them."""
        behind = [row for row, length in enumerate(lengths) if length - self.seen[row] > 2 or not self.seen[row]]
        if behind and (end := max(lengths[row] for row in behind) - 1) > 0:
            begin = min(self.seen[row] for row in behind)
            for first in range(begin, end, _PREFILL):  # in chunks: the attention mask is quadratic in the chunk
                self.logits(ids_BS[:, first : min(first + _PREFILL, end)], [first] * len(lengths), keep=1)
            # A row that lacks only one token was not in `behind`; if that token lies before `begin`, it is still missing.
            self.seen = [
                max(seen, min(end, length - 1)) if seen >= begin else seen
                for seen, length in zip(self.seen, lengths, strict=True)
            ]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.model.select(self.caches, rows)
        self.seen = [self.seen[row] for row in rows]


class Forward(Protocol):
    """A forward pass over a model's weights. Decodes share the weights; each decode has its own caches."""

    device: torch.device
    window: int | None  # sliding window in tokens; None: full attention

    def allocate(self, rows: int, capacity: int) -> Any:
        """Empty caches."""

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Any, keep: int) -> torch.Tensor:
        """Logits of the last `keep` positions."""

    def select(self, caches: Any, rows: Sequence[int]) -> None:
        """Keep only these rows of the caches."""


class ModelForward:
    """The model's own forward, for architectures that `LlamaForward` does not support."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self.model, self.vocabulary, self.device = model, vocabulary, model.device
        self.window = attention_window(getattr(model, "config", None))
        self.adds_mask = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"

    def allocate(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: RaggedCache, keep: int) -> torch.Tensor:
        first_B1 = torch.tensor(first, device=self.device).unsqueeze(1)
        slots_BT = first_B1 + torch.arange(ids_BT.shape[1], device=self.device)
        mask = caches.set_slots(slots_BT, max(first) + ids_BT.shape[1])
        if self.adds_mask:  # transformers' eager attention adds the mask to the scores; a boolean mask would add 0 or 1
            blocked = torch.finfo(self.model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device).masked_fill(~mask, blocked)
        output = self.model(
            input_ids=ids_BT,
            position_ids=slots_BT,
            attention_mask=mask,
            past_key_values=caches,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits[..., : self.vocabulary]
        return logits

    def select(self, caches: RaggedCache, rows: Sequence[int]) -> None:
        caches.select(rows)


def choose_forward(model: Any, vocabulary: int, llama_forward: bool = True) -> Forward:
    """`LlamaForward` if it supports `model` and reproduces the model's logits, otherwise the model's own forward."""
    supported = LlamaForward.of(model, vocabulary) if llama_forward else None
    return supported or ModelForward(model, vocabulary)
