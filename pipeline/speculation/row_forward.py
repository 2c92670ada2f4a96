"""The model's own forward and its own cache, one row at a time. Does not depend on decoding rules.

Slower than a batch, but it needs nothing of an architecture except that it can continue a text: no masks. A row
keeps its token ids, so what the cache cannot take back is computed again.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any, Literal

import torch

from pipeline.models.placement import input_device

# What happens with the cache after a rejection. "crop": the rejected tokens are removed. "rebuild": the cache is filled anew, and
# is continued one token at a time (recurrent states of many models take only one). "none": there is no cache; every pass
# processes the whole text.
Rollback = Literal["crop", "rebuild", "none"]
_CACHES = (
    "cache",
    "past_key_values",
    "cache_params",
    "state",
)  # names of the cache in the model's output, and of its argument; transformers 5.24 has but the first
_MOST_STEPS = 16  # a cache that lacks more tokens is filled anew in one pass instead of token by token


class Row:
    """One row: its token ids, and the model's cache of the first `cached` of them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.drop()

    def drop(self) -> None:
        self.cache: dict[str, Any] = {}
        self.cached = self.oldest = 0  # the cache can be cropped to `oldest` tokens and more


class RowForward:
    """`forward.Forward` for every architecture that continues a text."""

    def __init__(self, model: Any, vocabulary: int, rollback: Rollback) -> None:
        self.model, self.vocabulary, self.device, self.rollback = model, vocabulary, input_device(model), rollback
        # Some hybrids count positions in a layer that has none, and would begin at 0 again.
        self.takes_positions = "position_ids" in signature(model.forward).parameters

    def allocate(self, rows: int, capacity: int) -> list[Row]:
        return [Row() for _ in range(rows)]

    def select(self, caches: list[Row], rows: Sequence[int]) -> None:
        caches[:] = [caches[row] for row in rows]

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: list[Row], keep: int) -> torch.Tensor:
        rows = zip(ids_BT.tolist(), first, caches, strict=True)
        rows_KV = [self._row(tokens, start, row, keep) for tokens, start, row in rows]
        shape = next(logits_KV.shape for logits_KV in rows_KV if logits_KV is not None)
        return torch.stack(
            [torch.zeros(shape, device=self.device) if logits_KV is None else logits_KV for logits_KV in rows_KV]
        )

    def _row(self, tokens: list[int], start: int, row: Row, keep: int) -> torch.Tensor | None:
        """Logits (keep, V); None for a row whose tokens before `start` are not all known: it only fills the batch."""
        if start > len(row.tokens):
            return None
        row.tokens[start:] = tokens
        if self.rollback == "none":
            return self._pass(row, row.tokens, keep)
        if row.cached > start:
            self._roll_back(row, start)
        if self.rollback == "rebuild" and len(row.tokens) - row.cached > _MOST_STEPS:
            row.drop()
        rest = row.tokens[row.cached :]
        if self.rollback == "crop" or not row.cached:
            return self._pass(row, rest, keep)
        return torch.cat([self._pass(row, [token], 1) for token in rest])[-keep:]

    def _roll_back(self, row: Row, start: int) -> None:
        if self.rollback == "rebuild" or start < row.oldest:
            row.drop()
            return
        (cache,) = row.cache.values()
        cache.crop(start - row.cached)
        row.cached = row.oldest = start

    def _pass(self, row: Row, tokens: list[int], keep: int) -> torch.Tensor:
        ids_1T = torch.tensor([tokens], device=self.device)
        uses_cache = self.rollback != "none"
        positions = {}
        if uses_cache and self.takes_positions:
            positions["position_ids"] = torch.arange(row.cached, row.cached + len(tokens), device=self.device)[None]
        output = self.model(input_ids=ids_1T, use_cache=uses_cache, logits_to_keep=keep, **row.cache, **positions)
        if uses_cache:
            row.cached += len(tokens)
            if not row.cache:
                self._keep_cache(row, output)
        logits: torch.Tensor = output.logits[0, -keep:, : self.vocabulary]
        return logits

    def _keep_cache(self, row: Row, output: Any) -> None:
        name = next((name for name in _CACHES if name in output.keys() and output[name] is not None), None)  # noqa: SIM118
        if name is None:
            raise ValueError("the model returns no cache")
        row.cache = {name: output[name]}
        row.oldest = row.cached
        if self.rollback == "crop":
            (cache,) = row.cache.values()
            cache.activate_past_recording()
            if not cache.is_croppable:
                raise ValueError("the model's cache cannot be cropped")
