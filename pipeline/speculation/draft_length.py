"""How many tokens to draft: always the same, as long as the draft is sure, by how many sequences run, or not at all.

Every rule looks at what was known *before* the next token is drawn, so none of them changes what is emitted: a token once
drawn is always put to the target.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from pipeline.errors import UsageError


class DraftLength(Protocol):
    """A rule. `most` is the largest number it ever gives."""

    @property
    def most(self) -> int: ...

    def tokens(self, running: int) -> int:
        """Tokens to draft in the coming round, at most, with so many sequences running."""

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        """After a token was drawn from `logits_BV` (B, V): which rows draft another. None: all do."""

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """What became of a round's drafts, row by row."""


@dataclass(frozen=True)
class Fixed:
    """gamma tokens, always; 0 is plain decoding."""

    gamma: int

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise UsageError(f"gamma is {self.gamma}: it must be 0 (plain decoding) or more")

    @property
    def most(self) -> int:
        return self.gamma

    def tokens(self, running: int) -> int:
        return self.gamma

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        return None

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        return None


@dataclass(frozen=True)
class Confident(Fixed):
    """Up to gamma tokens, while the likeliest one has at least `least` of the draft's mass (as transformers' assisted
    generation, whose threshold is 0.4)."""

    least: float = 0.4

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        return logits_BV.float().softmax(-1).amax(-1) >= self.least


@dataclass(frozen=True)
class Certain(Fixed):
    """Up to gamma tokens, while the square root of the draft's entropy (nats) is at most `limit` (SVIP, Zhang et al. 2024,
    arXiv 2411.18462: the entropy bounds the chance of acceptance from below)."""

    limit: float = 0.6

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        log_q_BV = logits_BV.float().log_softmax(-1)
        entropy_B = -(log_q_BV.exp() * log_q_BV.clamp(min=-1e4)).sum(-1)
        return entropy_B.clamp(min=0).sqrt() <= self.limit


@dataclass(frozen=True)
class Schedule:
    """By the number of sequences in the batch: ((1, 4, 5), (5, 16, 2), (17, 64, 0)) drafts 5 tokens for up to 4, 2 for up
    to 16 and none above. Sequences that ended keep their row until half have, and cost as much. Read like vLLM's
    `num_speculative_tokens_per_batch_size`; beyond the last row, none."""

    rows: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        last = 0
        for first, end, gamma in self.rows:
            if first != last + 1 or end < first or gamma < 0:
                raise UsageError(
                    f"schedule row {[first, end, gamma]}: rows are [first, last, gamma] of sequences running, the first "
                    "begins at 1, and each begins where the one before ended"
                )
            last = end

    @property
    def most(self) -> int:
        return max((gamma for _, _, gamma in self.rows), default=0)

    def tokens(self, running: int) -> int:
        return next((gamma for first, last, gamma in self.rows if first <= running <= last), 0)

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        return None

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        return None


@dataclass
class Fallback:
    """Drafts less, then not at all, while the draft agrees too little to pay; finds its way back by probing.

    Over a sliding window of `window` examined tokens (accepted ones and first rejections) the `examined_acceptance_rate`
    is compared with `break_even`: below it, one step down (gamma, gamma / 2, 0); at `margin` above it, one step up. While
    off, every `patience`-th round drafts a short block, so that a window fills again.
    """

    inner: DraftLength
    break_even: float = 0.5
    window: int = 200
    margin: float = 0.05
    patience: int = 16
    on_change: Callable[[str], None] = lambda message: None
    level: int = 0  # 0 full, 1 half, 2 off
    _rounds: list[tuple[int, int]] = field(default_factory=list)  # (accepted, examined) of the rounds in the window
    _idle: int = 0  # rounds since the last one that drafted

    def __post_init__(self) -> None:
        if self.window < 1 or self.patience < 1 or self.margin < 0:
            raise UsageError("fallback: window and patience must be 1 or more, margin 0 or more")

    @property
    def most(self) -> int:
        return self.inner.most

    @property
    def rate(self) -> float:
        """examined_acceptance_rate over the window; NaN before anything was examined."""
        examined = sum(seen for _, seen in self._rounds)
        return sum(accepted for accepted, _ in self._rounds) / examined if examined else math.nan

    def tokens(self, running: int) -> int:
        full = self.inner.tokens(running)
        if self.level == 0 or full == 0:
            return full
        off = self.level == 2 and self._idle < self.patience - 1
        return 0 if off else max(1, full // 2)

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        return self.inner.go_on(logits_BV)

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self.inner.learn(drafted, accepted)
        self._idle = 0 if any(drafted) else self._idle + 1
        examined = sum(stood + (stood < count) for count, stood in zip(drafted, accepted, strict=True))
        if examined:
            self._rounds.append((sum(accepted), examined))
        while self._rounds and sum(seen for _, seen in self._rounds[1:]) >= self.window:
            self._rounds.pop(0)
        if sum(seen for _, seen in self._rounds) < self.window:
            return
        rate = self.rate
        if rate < self.break_even and self.level < 2:
            self._move(self.level + 1, rate)
        elif rate >= self.break_even + self.margin and self.level > 0:
            self._move(self.level - 1, rate)

    def _move(self, level: int, rate: float) -> None:
        self.level, self._idle = level, 0
        self._rounds.clear()  # a new length is judged on what it does itself
        how = ("the full draft length", "half the draft length", "no drafting")[level]
        self.on_change(f"{how}: of the last {self.window} examined draft tokens {rate:.1%} stood")
