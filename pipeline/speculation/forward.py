"""A model with its cache, as the decoder sees it: token ids in at their slots, logits out.

Two ways to the same logits: `lean.LlamaForward` over the weights of a Llama-shaped model, and the model's own forward where
the shape is another. Knows no decoding rule. Shapes: B rows, T tokens of a row, S visible slots, V shared tokens.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pipeline.errors import UsageError
from pipeline.speculation.cache import RaggedCache, attention_window
from pipeline.speculation.llama_forward import LlamaForward

_PREFILL = 512  # tokens of a pass over a prompt


class Side:
    """Target or draft of one decode. Slot s of a row holds position s of that row's sequence, always."""

    def __init__(self, model: "Body", rows: int, capacity: int, longest: int | None = None) -> None:
        """`longest` is the longest sequence that is read, the capacity's slack left out. Raises UsageError where the model
        would stop seeing its first tokens: both forwards show it all of them."""
        if model.window is not None and (longest or capacity) > model.window:
            raise UsageError(
                f"a sequence of {longest or capacity} tokens (prompt and limit), but this model looks back only "
                f"{model.window}; shorten the prompts or the limit"
            )
        self.body, self.device = model, model.device
        self.state = model.allocate(rows, capacity)
        self.seen = [0] * rows  # slots of each row that hold what the sequence says, from slot 0 on

    def logits(self, ids_BT: torch.Tensor, first: Sequence[int], keep: int) -> torch.Tensor:
        """Feed `ids_BT` at slots first[b]..first[b] + T - 1; logits of the last `keep` positions, (B, keep, V), on the
        ids' device."""
        ids_BT, home = ids_BT.to(self.device), ids_BT.device
        return self.body.forward(ids_BT, first, self.state, keep).to(home)

    def catch_up(self, ids_BS: torch.Tensor, lengths: Sequence[int]) -> None:
        """See every token but the last of each row, where more than one is missing: the prefill, and what a draft missed
        while it was switched off. Shorter rows run into whatever is behind them; those slots are written again before
        anything may attend to them, because the mask hides what lies ahead."""
        behind = [row for row, length in enumerate(lengths) if length - self.seen[row] > 2 or not self.seen[row]]
        if behind and (end := max(lengths[row] for row in behind) - 1) > 0:
            begin = min(self.seen[row] for row in behind)
            for first in range(begin, end, _PREFILL):  # in pieces: attention's mask grows with the square of a pass
                self.logits(ids_BS[:, first : min(first + _PREFILL, end)], [first] * len(lengths), keep=1)
            # A row that was left alone because it lacks only one token may lack it before `begin`: it still does.
            self.seen = [
                max(seen, min(end, length - 1)) if seen >= begin else seen
                for seen, length in zip(self.seen, lengths, strict=True)
            ]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.body.select(self.state, rows)
        self.seen = [self.seen[row] for row in rows]


class Body(Protocol):
    """Weights that many decodes share; the caches belong to each decode."""

    device: torch.device
    window: int | None  # how far a token looks back; None: to the first

    def allocate(self, rows: int, capacity: int) -> Any:
        """Empty caches."""

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], state: Any, keep: int) -> torch.Tensor:
        """Logits of the last `keep` positions."""

    def select(self, state: Any, rows: Sequence[int]) -> None:
        """Keep only these rows of the caches."""


class ModelForward:
    """The model's own forward, for shapes that `LlamaForward` does not know."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self.model, self.vocabulary, self.device = model, vocabulary, model.device
        self.window = attention_window(getattr(model, "config", None))
        self.adds_mask = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"

    def allocate(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], state: RaggedCache, keep: int) -> torch.Tensor:
        first_B1 = torch.tensor(first, device=self.device).unsqueeze(1)
        slots_BT = first_B1 + torch.arange(ids_BT.shape[1], device=self.device)
        mask = state.place(slots_BT, max(first) + ids_BT.shape[1])
        if self.adds_mask:  # transformers' eager attention adds the mask to its scores, and True would only add 1
            blocked = torch.finfo(self.model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device).masked_fill(~mask, blocked)
        output = self.model(
            input_ids=ids_BT,
            position_ids=slots_BT,
            attention_mask=mask,
            past_key_values=state,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits[..., : self.vocabulary]
        return logits

    def select(self, state: RaggedCache, rows: Sequence[int]) -> None:
        state.select(rows)


def choose_body(model: Any, vocabulary: int, lean: bool = True) -> Body:
    """The lean forward where `model` has its shape and it reproduces the model's own logits, else the model's own."""
    body = LlamaForward.of(model, vocabulary) if lean else None
    return body or ModelForward(model, vocabulary)
