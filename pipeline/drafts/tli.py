"""A draft with another tokenizer as an engine serves it without training (TLI, vLLM's `use_heterogeneous_vocab`).

It reads the target's tokens one by one as tokens of its own, never the text anew, and proposes its likeliest token among the
shared ones. So its token depends on the target's tokens before it alone, and it is examined as a plain draft is. Shapes as in
`speculation/drafter.py`; D columns of its own logits.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch

from pipeline.drafts.kinds import TLI
from pipeline.drafts.plain import PlainDraft
from pipeline.drafts.token_map import TokenMap
from pipeline.models.placement import input_device
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.forward import Forward
from pipeline.speculation.sampling import precise
from pipeline.speculation.teacher_forced import PaddedBatch, TeacherForced


class TliDraft(PlainDraft):
    """`drafter.LoadedDraft` for a loaded model of another vocabulary. `vocabulary`: the number of the target's tokens."""

    kind = TLI

    def __init__(self, model: Any, tokens: TokenMap, vocabulary: int) -> None:
        super().__init__(_Mapped(model, tokens), vocabulary)

    @property
    def note(self) -> str:
        """How it is served, and how many tokens it shares."""
        tokens: TokenMap = self.model.tokens
        either = f" ({tokens.ambiguous:,} spellings have two tokens, of which the engine takes either)"
        return (
            "as vLLM serves it with use_heterogeneous_vocab, greedily and untrained; "
            f"{tokens.shared:,} of {len(tokens.shared_V):,} tokens are written alike{either if tokens.ambiguous else ''}"
        )

    @cached_property
    def _passes(self) -> TeacherForced:
        return _MappedPasses(self.model)

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int], known: int) -> torch.Tensor:
        """The logits (V,) of the token after `ids`, in a round that began when `known` of them were."""
        inner, tokens = self.model.inner, self.model.tokens
        ids_1T = tokens.ids(torch.tensor([list(ids)], device=self.model.device))
        logits: torch.Tensor = inner(input_ids=ids_1T, use_cache=False, logits_to_keep=1).logits[0, -1]
        return precise(tokens.logits(logits)[: self.vocabulary])


class _Mapped:
    """The model, in the target's vocabulary. A model that brings its forward (`speculation/choice.py`)."""

    def __init__(self, inner: Any, tokens: TokenMap) -> None:
        self.config, self.dtype, self.device = inner.config, inner.dtype, input_device(inner)
        self.inner, self.tokens = inner, tokens.to(self.device)

    @property
    def width(self) -> int:
        """The width of its own logits."""
        return int(self.inner.config.get_text_config().vocab_size)

    def as_forward(self, vocabulary: int) -> "_MappedForward":
        return _MappedForward(choose_forward(self.inner, self.width), self.tokens, vocabulary)


class _MappedForward:
    """`forward.Forward` of the model's own, with ids and logits of the target's tokens."""

    def __init__(self, inner: Forward, tokens: TokenMap, vocabulary: int) -> None:
        self._inner, self._tokens, self._vocabulary, self.device = inner, tokens, vocabulary, inner.device

    def allocate(self, rows: int, capacity: int) -> Any:
        return self._inner.allocate(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Any, keep: int) -> torch.Tensor:
        logits_BKD = self._inner.forward(self._tokens.ids(ids_BT), first, caches, keep)
        return self._tokens.logits(logits_BKD)[..., : self._vocabulary]

    def select(self, caches: Any, rows: Sequence[int]) -> None:
        self._inner.select(caches, rows)


class _MappedPasses(TeacherForced):
    """The passes of a mapped draft in a single pass over given completions."""

    def __init__(self, model: _Mapped) -> None:
        super().__init__(model.inner)
        self._tokens, self._width = model.tokens, model.width

    def logits(self, batch: PaddedBatch, vocabulary: int) -> Iterator[tuple[slice, torch.Tensor]]:
        own = copy(batch)
        own.ids_BT = self._tokens.ids(batch.ids_BT)
        for part, logits_nD in super().logits(own, self._width):
            yield part, self._tokens.logits(logits_nD)[:, :vocabulary]
