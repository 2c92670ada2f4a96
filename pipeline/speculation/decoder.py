"""The one decoding loop: batched, speculative, exact. With gamma 0 it is plain generation.

Knows models as callables on (ids, positions, cache) and nothing of stages, stores or tracking.
Shapes: B sequences still running, G = gamma drafted tokens, T positions of a forward pass, V shared tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pipeline.errors import UsageError
from pipeline.speculation.cache import RaggedCache
from pipeline.speculation.sampling import Sampling, Streams, draw, log_probabilities
from pipeline.speculation.verification import verify_tokens

# Called after each round with (request number of each row, target logits (B, G + 1, V), emitted (B, G + 1), count (B)):
# emitted[b, i] follows from logits[b, i] for i < count[b].
Observer = Callable[[list[int], torch.Tensor, np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class Request:
    """One prompt. At most `limit` tokens are emitted; after a stop token, or at the limit, `overrun` further ones."""

    prompt: Sequence[int]
    limit: int
    seed: int
    overrun: int = 0


@dataclass
class Completion:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)  # emitted tokens, overrun included
    length: int = 0  # without the overrun; the stop token counts
    stopped: bool = False  # by a stop token rather than the limit
    rounds: int = 0  # target calls after the prefill that took part in the first `length` tokens
    accepted: list[int] = field(default_factory=list)  # drafted tokens that stood, round by round


class Side:
    """A model with its cache: target or draft."""

    def __init__(self, model: Any, rows: int, capacity: int, vocabulary: int) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.cache = RaggedCache(rows, capacity)
        self.device = model.device
        self.adds_mask = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"

    @torch.inference_mode()
    def logits(self, ids_BT: torch.Tensor, first_B: torch.Tensor, keep: int) -> torch.Tensor:
        """Feed `ids_BT` at slots first_B..first_B + T - 1; logits of the last `keep` positions, (B, keep, V), on the
        ids' device. Columns beyond the vocabulary the pair shares are padding and are cut."""
        slots_BT = first_B.unsqueeze(1) + torch.arange(ids_BT.shape[1])
        mask = self.cache.place(slots_BT.to(self.device), int(slots_BT.max()) + 1)
        if self.adds_mask:  # transformers' eager attention adds the mask to its scores, and True would only add 1
            blocked = torch.finfo(self.model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device).masked_fill(~mask, blocked)
        output = self.model(
            input_ids=ids_BT.to(self.device),
            position_ids=slots_BT.to(self.device),
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits[..., : self.vocabulary]
        return logits.to(ids_BT.device)


class Decoder:
    """Speculative decoding of a batch under token-level verification."""

    def __init__(
        self,
        target: Any,
        draft: Any | None,
        *,
        sampling: Sampling,
        vocabulary: int,
        gamma: int = 0,
        draft_sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
        observer: Observer | None = None,
    ) -> None:
        """`draft_sampling` is what the engine applies to the draft; by default the same as to the target.
        `vocabulary` is the number of tokens target and draft share."""
        if gamma and draft is None:
            raise UsageError(f"gamma is {gamma} but there is no draft model")
        self.target, self.draft, self.gamma = target, draft, gamma
        self.sampling, self.draft_sampling = sampling, draft_sampling or sampling
        self.vocabulary, self.stop_tokens, self.observer = vocabulary, frozenset(stop_tokens), observer

    @torch.inference_mode()
    def decode(
        self, requests: Sequence[Request], on_tokens: Callable[[int], None] = lambda count: None
    ) -> list[Completion]:
        """Decode all requests together. `on_tokens` hears how many tokens each round emitted.

        Raises UsageError for an empty prompt or a limit below 1.
        """
        for number, request in enumerate(requests):
            if not request.prompt or request.limit < 1:
                raise UsageError(f"request {number}: an empty prompt or a limit below 1 cannot be decoded")
        if not requests:
            return []
        batch = _Batch(self, requests)
        batch.prefill()
        while batch.running:
            on_tokens(self._round(batch))
        return batch.completions

    def _round(self, batch: "_Batch") -> int:
        """One speculative step: the draft proposes, the target scores all of it in one pass, a prefix stands."""
        draft_BG, log_q_BGV = self._propose(batch)
        block_BT = torch.cat([batch.last_B1, draft_BG], dim=1)
        logits_BTV = batch.target.logits(block_BT, batch.lengths_B - 1, keep=self.gamma + 1)
        log_p_BTV = log_probabilities(logits_BTV, self.sampling)
        accepted_B, next_B = verify_tokens(log_p_BTV, log_q_BGV, draft_BG, batch.streams.take(self.gamma + 1))
        return batch.emit(draft_BG, accepted_B, next_B, logits_BTV)

    def _propose(self, batch: "_Batch") -> tuple[torch.Tensor, torch.Tensor]:
        """gamma tokens from the draft with the log of the distributions they were drawn from."""
        tokens_G: list[torch.Tensor] = []
        log_q_GV: list[torch.Tensor] = []
        if self.gamma == 0:
            return batch.last_B1[:, :0], torch.empty(len(batch.running), 0, self.vocabulary)
        assert batch.draft is not None
        uniform_BG = batch.streams.take(self.gamma)
        # The last two tokens, not one: after a fully accepted block the draft has not yet seen its own last proposal.
        ids_BT, first_B = batch.last_two()
        for position in range(self.gamma):
            log_q_BV = log_probabilities(batch.draft.logits(ids_BT, first_B, keep=1)[:, 0], self.draft_sampling)
            token_B = draw(log_q_BV.exp(), uniform_BG[:, position])
            log_q_GV.append(log_q_BV)
            tokens_G.append(token_B)
            ids_BT, first_B = token_B.unsqueeze(1), batch.lengths_B + position
        return torch.stack(tokens_G, dim=1), torch.stack(log_q_GV, dim=1)


class _Batch:
    """The state of the sequences that are still running."""

    def __init__(self, decoder: Decoder, requests: Sequence[Request]) -> None:
        self.decoder, self.requests = decoder, requests
        self.completions = [Completion() for _ in requests]
        self.running = list(range(len(requests)))  # request number of each row
        self.limits = [request.limit + request.overrun for request in requests]
        self.lengths_B = torch.tensor([len(request.prompt) for request in requests])
        capacity = int(max(len(request.prompt) + limit for request, limit in zip(requests, self.limits, strict=True)))
        capacity += decoder.gamma + 1
        self.ids_BS = torch.zeros(len(requests), capacity, dtype=torch.long)
        for row, request in enumerate(requests):
            self.ids_BS[row, : len(request.prompt)] = torch.tensor(request.prompt)
        self.streams = Streams([request.seed for request in requests])
        self.target = Side(decoder.target, len(requests), capacity, decoder.vocabulary)
        self.draft = Side(decoder.draft, len(requests), capacity, decoder.vocabulary) if decoder.gamma else None

    @property
    def last_B1(self) -> torch.Tensor:
        return self.ids_BS.gather(1, self.lengths_B.unsqueeze(1) - 1)

    def last_two(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The last two tokens of each row and the first one's slot; a prompt of one token repeats slot 0."""
        first_B = (self.lengths_B - 2).clamp(min=0)
        if int(self.lengths_B.min()) < 2:
            return self.last_B1, self.lengths_B - 1
        return self.ids_BS.gather(1, first_B.unsqueeze(1) + torch.arange(2)), first_B

    def prefill(self) -> None:
        """Fill the caches with every prompt token but the last, which the first round feeds. Shorter prompts run into
        the zeros behind them; those slots are written again before they are seen."""
        longest = int(self.lengths_B.max()) - 1
        if longest > 0:
            start_B = torch.zeros_like(self.lengths_B)
            for side in (self.target, self.draft):
                if side is not None:
                    side.logits(self.ids_BS[:, :longest], start_B, keep=1)

    def emit(
        self, draft_BG: torch.Tensor, accepted_B: torch.Tensor, next_B: torch.Tensor, logits_BTV: torch.Tensor
    ) -> int:
        """Append each row's accepted tokens and the one after them; retire rows that are done. Returns tokens emitted."""
        rows_B = torch.arange(len(self.running))
        block_BT = torch.cat([draft_BG, next_B.unsqueeze(1)], dim=1)
        block_BT[rows_B, accepted_B] = next_B
        slots_BT = self.lengths_B.unsqueeze(1) + torch.arange(block_BT.shape[1])
        self.ids_BS.scatter_(1, slots_BT, block_BT)
        self.lengths_B = self.lengths_B + accepted_B + 1
        emitted_BT, accepted = block_BT.numpy(), accepted_B.tolist()
        counts = np.zeros(len(self.running), dtype=np.int64)
        for row, number in enumerate(self.running):
            counts[row] = self._append(number, emitted_BT[row, : accepted[row] + 1].tolist(), accepted[row])
        if self.decoder.observer is not None:
            self.decoder.observer(self.running, logits_BTV, emitted_BT, counts)
        self._retire()
        return int(counts.sum())

    def _append(self, number: int, tokens: list[int], accepted: int) -> int:
        """Add a round's tokens to a completion, cut at a stop token or the limit. Returns how many were added."""
        completion, request = self.completions[number], self.requests[number]
        before = len(completion.tokens)
        if not completion.length:
            completion.rounds += 1
            completion.accepted.append(accepted)
        for token in tokens:
            if len(completion.tokens) >= self.limits[number]:
                break
            completion.tokens.append(token)
            if completion.length:
                continue
            stopped = token in self.decoder.stop_tokens
            if stopped or len(completion.tokens) == request.limit:
                completion.length, completion.stopped = len(completion.tokens), stopped
                self.limits[number] = completion.length + request.overrun
        return len(completion.tokens) - before

    def _retire(self) -> None:
        """Drop finished rows from the batch. Copying caches costs, so only when half of the rows are done, or all."""
        alive = [row for row, number in enumerate(self.running) if not self._done(number)]
        if alive and len(alive) > len(self.running) // 2:
            # A finished row goes on harmlessly in place; its length is held so that it never leaves the buffers.
            held_B = torch.tensor([self._done(number) for number in self.running])
            capacity = self.ids_BS.shape[1] - self.decoder.gamma - 1
            self.lengths_B = torch.where(held_B, self.lengths_B.clamp(max=capacity), self.lengths_B)
            return
        self.running = [self.running[row] for row in alive]
        if alive:
            self.lengths_B, self.ids_BS = self.lengths_B[alive], self.ids_BS[alive]
            self.streams.select(alive)
            for side in (self.target, self.draft):
                if side is not None:
                    side.cache.select(alive)

    def _done(self, number: int) -> bool:
        return 0 < self.completions[number].length and len(self.completions[number].tokens) >= self.limits[number]
