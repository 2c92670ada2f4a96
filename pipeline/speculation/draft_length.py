"""How many tokens to draft: a fixed number, as many as the draft is confident of, by batch size, or none.

Every rule uses only what is known *before* the next token is drawn, so no rule changes the output: the target verifies every
token that was drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from pipeline.errors import UsageError


class DraftLength(Protocol):
    """A rule for the draft length. `most` is the largest length it can return."""

    @property
    def most(self) -> int: ...

    def tokens(self, running: int) -> int:
        """The largest number of tokens to draft in the next round, with `running` sequences in the batch."""

    def go_on(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        """Which rows draft another token, after one was drawn from `logits_BV` (B, V). None: all rows."""

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Drafted and accepted tokens of a round, row by row."""


@dataclass(frozen=True)
class Fixed:
    """Always gamma tokens; 0 is plain decoding."""

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
    """Up to gamma tokens, while the draft's top probability is at least `least` (transformers' assisted generation stops
    at 0.4)."""

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
class LengthSchedule:
    """Draft lengths by batch size: ((1, 4, 5), (5, 16, 2), (17, 64, 0)) drafts 5 tokens for up to 4 sequences, 2 for up to 16 and
    none above. Finished sequences stay in the batch until half of them are finished, and cost the same. The rows are those of
    vLLM's `num_speculative_tokens_per_batch_size`; above the last row nothing is drafted."""

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
    """Drafts fewer tokens, then none, while the acceptance rate is below `break_even`, and more tokens again above it.

    The `examined_acceptance_rate` over a sliding window of `window` examined tokens (accepted ones and first rejections)
    is compared with `break_even`. Below it, the draft length goes one step down (gamma, gamma / 2, 0). At `break_even +
    margin` (at most 1) or above, it goes one step up. While drafting is off, every `patience`-th round drafts
    gamma / 2 tokens (a probe round), and the window is `probe_window`, because 200 such tokens would take thousands of rounds.
    """

    inner: DraftLength
    break_even: float = 0.5
    window: int = 200
    probe_window: int = 32
    margin: float = 0.05
    patience: int = 16
    on_change: Callable[[str], None] = lambda message: None
    level: int = 0  # 0 full length, 1 half, 2 off
    _rounds: list[tuple[int, int]] = field(default_factory=list)  # (accepted, examined) of the rounds in the window
    _idle: int = 0  # rounds since the last one that drafted

    def __post_init__(self) -> None:
        if min(self.window, self.probe_window, self.patience) < 1 or self.margin < 0:
            raise UsageError("fallback: windows and patience must be 1 or more, margin 0 or more")

    @property
    def most(self) -> int:
        return self.inner.most

    @property
    def rate(self) -> float:
        """examined_acceptance_rate over the window; NaN before anything was examined."""
        return sum(accepted for accepted, _ in self._rounds) / self.examined if self._rounds else math.nan

    @property
    def examined(self) -> int:
        """Draft tokens in the window: accepted ones and first rejections."""
        return sum(seen for _, seen in self._rounds)

    @property
    def needed(self) -> int:
        """Draft tokens that must be examined before the draft length changes."""
        return min(self.window, self.probe_window) if self.level == 2 else self.window

    @property
    def _high_enough(self) -> float:
        return min(1.0, self.break_even + self.margin)

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
        while self._rounds and self.examined - self._rounds[0][1] >= self.needed:
            self._rounds.pop(0)
        if self.examined < self.needed:
            return
        rate = self.rate
        step = 1 if self.most > 1 else 2  # half of one token is one token
        if rate < self.break_even and self.level < 2:
            self._change(min(self.level + step, 2), f"{rate:.2f}, below the threshold of {self.break_even:.2f}")
        elif rate >= self._high_enough and self.level > 0:
            self._change(max(self.level - step, 0), f"{rate:.2f}, at least {self._high_enough:.2f}")

    def _change(self, level: int, rate: str) -> None:
        how = (
            "full draft length",
            "half the draft length",
            f"speculation off, with a probe round every {self.patience} rounds",
        )
        self.on_change(f"{how[level]}: the acceptance rate of the last {self.needed} verified draft tokens was {rate}")
        self.level, self._idle = level, 0
        self._rounds.clear()  # the new length is measured on its own rounds
