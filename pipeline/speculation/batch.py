"""The sequences of one decode: requests, running rows and emitted tokens. Does not depend on models or verification rules.

Shapes: B sequences still running, G drafted tokens, S slots of a sequence.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from pipeline.errors import UsageError
from pipeline.models.devices import upload


@dataclass(frozen=True)
class Request:
    """One prompt. At most `limit` tokens are emitted, then `lookahead` more after the stop token or the limit. A draft may read
    `domain`, which is empty where it is not known."""

    prompt: Sequence[int]
    limit: int
    seed: int
    lookahead: int = 0
    domain: str = ""


@dataclass
class Seconds:
    """Wall time of each phase. `rest` is the verification rule and bookkeeping."""

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    rest: float = 0.0

    def add(self, other: "Seconds") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def total(self) -> float:
        return self.prefill + self.draft + self.verify + self.rest


@dataclass
class Completion:
    """The result of one request. Only rounds that contributed to the first `length` tokens are counted."""

    tokens: list[int] = field(default_factory=list)  # emitted tokens, including the lookahead
    length: int = 0  # without the lookahead; the stop token counts
    stopped: bool = False  # at a stop token, not at the limit
    drafted: list[int] = field(default_factory=list)  # draft tokens proposed in each round
    accepted: list[int] = field(default_factory=list)  # draft tokens accepted in each round
    seconds: Seconds = field(default_factory=Seconds, compare=False)  # wall time of its rounds; the batch shares them

    @property
    def rounds(self) -> int:
        """Target calls after the prefill."""
        return len(self.accepted)


class Round(NamedTuple):
    """One speculative step of a batch, as it is streamed. Row b belongs to request numbers[b]."""

    numbers: list[int]
    emitted: list[list[int]]  # tokens of each row, truncated at its end; the last one is the correction or bonus token
    drafted: list[int]
    accepted: list[int]  # accepted draft tokens, before truncation
    logits_BTV: torch.Tensor  # the target's logits; emitted[b][i] was chosen from logits_BTV[b, i]


class Batch:
    """The state of the running sequences. Token ids are on the target's device."""

    def __init__(
        self, requests: Sequence[Request], most: int, stop_tokens: Collection[int], device: torch.device
    ) -> None:
        for number, request in enumerate(requests):
            if not request.prompt or request.limit < 1:
                raise UsageError(f"request {number}: an empty prompt or a limit below 1 cannot be decoded")
        self.requests, self.stop_tokens = requests, stop_tokens
        self.completions = [Completion() for _ in requests]
        self.running = list(range(len(requests)))  # request number of each row
        self.limits = [request.limit + request.lookahead for request in requests]
        self.lengths = [len(request.prompt) for request in requests]
        ends = [length + limit for length, limit in zip(self.lengths, self.limits, strict=True)]
        self.most, self.capacity = most, max(ends) + most + 1
        ids_BS = torch.zeros(len(requests), self.capacity, dtype=torch.long)
        for row, request in enumerate(requests):
            ids_BS[row, : len(request.prompt)] = torch.tensor(request.prompt)
        self.ids_BS = upload(ids_BS, device)

    def last(self, count: int) -> torch.Tensor:
        """The last `count` tokens of each row, (B, count)."""
        if min(self.lengths) == max(self.lengths):
            return self.ids_BS[:, self.lengths[0] - count : self.lengths[0]]
        return self.ids_BS.gather(1, self._ends() + torch.arange(-count, 0, device=self.ids_BS.device))

    def _ends(self) -> torch.Tensor:
        """The place where each row ends, (B, 1)."""
        return upload(self.lengths, self.ids_BS.device).unsqueeze(1)

    def room(self) -> list[int]:
        """How many tokens each row may draft: one less than it may still emit, since each round emits one more token."""
        return [max(self.limits[number] - len(self.completions[number].tokens) - 1, 0) for number in self.running]

    def emit(
        self, block_BT: torch.Tensor, block: list[list[int]], drafted: list[int], accepted: list[int]
    ) -> list[list[int]]:
        """Append each row's accepted tokens and the one after them (`block_BT` on the device, `block` on the host).
        Returns the added tokens, truncated at stop tokens and limits."""
        if min(self.lengths) == max(self.lengths):
            self.ids_BS[:, self.lengths[0] : self.lengths[0] + block_BT.shape[1]] = block_BT
        else:
            at_BT = self._ends() + torch.arange(block_BT.shape[1], device=self.ids_BS.device)
            self.ids_BS.scatter_(1, at_BT, block_BT)
        added = []
        for row, number in enumerate(self.running):
            self.lengths[row] += accepted[row] + 1
            added.append(self._append(number, block[row][: accepted[row] + 1], drafted[row], accepted[row]))
        return added

    def _append(self, number: int, tokens: list[int], drafted: int, accepted: int) -> list[int]:
        completion, request = self.completions[number], self.requests[number]
        before = len(completion.tokens)
        if not completion.length:
            completion.drafted.append(drafted)
            completion.accepted.append(accepted)
        for token in tokens:
            if len(completion.tokens) >= self.limits[number]:
                break
            completion.tokens.append(token)
            if completion.length:
                continue
            stopped = token in self.stop_tokens
            if stopped or len(completion.tokens) == request.limit:
                completion.length, completion.stopped = len(completion.tokens), stopped
                self.limits[number] = completion.length + request.lookahead
        return completion.tokens[before:]

    def retire(self) -> list[int] | None:
        """Remove finished rows. Returns the rows to keep, or None if no row was removed.

        Copying caches is expensive, so rows are removed only when at least half of them are finished. Until then a
        finished row stays in the batch and its output is ignored; its length is capped so that it fits the buffers.
        """
        alive = [row for row, number in enumerate(self.running) if not self.done(number)]
        if alive and len(alive) > len(self.running) // 2:
            most = self.capacity - self.most - 1
            for row, number in enumerate(self.running):
                if self.done(number):
                    self.lengths[row] = min(self.lengths[row], most)
            return None
        self.running = [self.running[row] for row in alive]
        self.lengths = [self.lengths[row] for row in alive]
        if alive:
            self.ids_BS = self.ids_BS[upload(alive, self.ids_BS.device)]
        return alive

    def done(self, number: int) -> bool:
        return 0 < self.completions[number].length and len(self.completions[number].tokens) >= self.limits[number]
