"""A plain draft: a smaller causal language model with the target's vocabulary. Shapes as in `speculation/drafter.py`; n tokens of
completions."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.drafts.drawing import draw_block
from pipeline.drafts.examined_logits import Logits
from pipeline.drafts.kinds import PLAIN
from pipeline.errors import BrokenDraft
from pipeline.models.placement import input_device
from pipeline.speculation.batch import Batch
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.drafter import DraftScores, GoOn, Proposal
from pipeline.speculation.forward import CachedModel, Forward
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.sampling import log_probabilities, precise
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, TeacherForced

Floats = NDArray[np.float64]


class PlainDraft:
    """`drafter.LoadedDraft` for a loaded model. `vocabulary`: the number of tokens that it shares with the target."""

    kind, layers, states, longest = PLAIN, (), None, None

    def __init__(self, model: Any, vocabulary: int, llama_forward: bool = True) -> None:
        """`llama_forward=False` decodes with the model's own forward."""
        self.model, self.vocabulary, self._llama_forward = model, vocabulary, llama_forward

    @property
    def models(self) -> Sequence[Any]:
        return (self.model,)

    @cached_property
    def forward(self) -> Forward:
        """The proved forward, which packs small weights once for all decodes."""
        return choose_forward(self.model, self.vocabulary, self._llama_forward)

    @cached_property
    def _passes(self) -> TeacherForced:
        return TeacherForced(self.model)

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> "PlainDrafter":
        return PlainDrafter(self.forward, batch, rules, prefill)

    def examine(
        self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None = None
    ) -> DraftScores:
        """Implements `LoadedDraft.examine`: one pass, whatever gamma. At temperature 0 the values are hits of the argmax."""
        if batch.width > (context := _context(self.model)):
            raise BrokenDraft(
                f"a prompt and its completion are {batch.width} tokens long and the draft's context is {context}: lower "
                "corpus.max_prompt_tokens or generate.max_new_tokens, or use a draft with a longer context"
            )
        found_N: Floats = np.empty(len(batch.tokens_N))
        for _, part, logits_nV, tokens_n in self.logits_on(batch, 1):
            found_N[part] = _is_best(logits_nV, tokens_n) if sampling.greedy else _log_q(logits_nV, tokens_n, sampling)
        return DraftScores(batch.by_row(found_N), hits=sampling.greedy)

    def logits_on(self, batch: PaddedBatch, places: int, features: Features | None = None) -> Iterator[Logits]:
        """The logits at each token of the batch, which are those of any round."""
        for part, logits_nV in self._passes.logits(batch, self.vocabulary):
            yield Logits(0, part, logits_nV, batch.tokens_N[part].to(logits_nV.device))

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int], known: int) -> torch.Tensor:
        """The logits (V,) of the token after `ids`, in a round that began when `known` of them were."""
        ids_1T = torch.tensor([list(ids)], device=input_device(self.model))
        logits: torch.Tensor = self.model(input_ids=ids_1T, use_cache=False, logits_to_keep=1).logits[0, -1]
        return precise(logits[: self.vocabulary])


class PlainDrafter:
    """Drafts token by token, each in a forward pass over the one before it."""

    def __init__(self, forward: Forward, batch: Batch, rules: Rules, prefill: int) -> None:
        self._batch, self._rules = batch, rules
        self._model = CachedModel(forward, len(batch.running), batch.capacity, prefill)

    def start(self, features: Features | None) -> None:
        self._model.fill_cache(self._batch.ids_BS, self._batch.lengths)

    def propose(self, count: int, uniform_BN: torch.Tensor, go_on: GoOn) -> Proposal:
        batch, model = self._batch, self._model
        model.fill_cache(batch.ids_BS, batch.lengths)  # what it missed while nothing was drafted
        # One token, or two after a fully accepted block: the draft has not processed its own last proposal yet.
        unseen = max(length - seen for length, seen in zip(batch.lengths, model.seen, strict=True))
        ids_BT, first = batch.last(unseen), [length - unseen for length in batch.lengths]

        def logits_at(place: int, token_B: torch.Tensor | None) -> torch.Tensor:
            if token_B is None:
                return model.logits(ids_BT, first, keep=1)[:, 0]
            return model.logits(token_B.unsqueeze(1), [length + place - 1 for length in batch.lengths], keep=1)[:, 0]

        return draw_block(self._rules, batch.room(), count, uniform_BN, go_on, logits_at)

    def commit(self, accepted: Sequence[int], made: int, features: Features | None) -> None:
        if made:
            # The draft has processed all its proposals but the last; rejected ones will be overwritten.
            rows = zip(self._batch.lengths, accepted, strict=True)
            self._model.seen = [length - 1 - max(count - made + 1, 0) for length, count in rows]

    def select(self, rows: Sequence[int]) -> None:
        self._model.select(rows)


def _context(model: Any) -> float:
    """The model's maximum sequence length in tokens; infinite if its config does not state one."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "max_position_embeddings", None) or float("inf")


def _log_q(logits_nV: torch.Tensor, tokens_n: torch.Tensor, sampling: Sampling) -> Floats:
    """log q of each token; NaN if any logit of its position is NaN."""
    log_q_nV = log_probabilities(logits_nV, sampling)
    found_n: Floats = log_q_nV.gather(-1, tokens_n.unsqueeze(-1)).squeeze(-1).double().cpu().numpy()
    return found_n


def _is_best(logits_nV: torch.Tensor, tokens_n: torch.Tensor) -> Floats:
    """1 where the token is the draft's argmax, else 0; NaN if any logit of its position is NaN."""
    largest = logits_nV.max(-1)  # NaN if any logit is NaN; the lowest id among ties
    found_n: Floats = (
        torch.where(torch.isnan(largest.values), torch.nan, (largest.indices == tokens_n).double()).cpu().numpy()
    )
    return found_n
