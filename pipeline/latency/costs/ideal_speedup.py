"""Speedup of speculation, from tokens per target call and forward times. Pure.

Times are of one forward pass at one batch size and context, in any unit: target over 1 token, target over gamma + 1, draft
over 1 (Leviathan et al. 2023, theorem 3.8, with measured times in place of the cost ratio c).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pipeline.acceptance.rounds import iid_tokens_per_call


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of a forward pass: `target[n]` over n tokens per sequence, `draft` over one."""

    target: Mapping[int, float]
    draft: float

    @property
    def cost_ratio(self) -> float:
        """c: time of a draft pass / time of a target pass over one token."""
        return self.draft / self.target[1]

    def round(self, gamma: int) -> float:
        """Seconds of one speculative round: gamma draft passes and a target pass over gamma + 1 tokens."""
        return gamma * self.draft + self.target[gamma + 1]


def from_cost_ratio(ratio: float, gammas: int) -> ForwardTimes:
    """Times from c alone, verification cost ignored: every target pass takes 1."""
    return ForwardTimes(dict.fromkeys(range(1, gammas + 2), 1.0), ratio)


def ideal_speedup(tokens_per_call: float, gamma: int, times: ForwardTimes) -> float:
    """Time of plain decoding / time of speculation for the same tokens, forward passes only."""
    return tokens_per_call * times.target[1] / times.round(gamma)


def break_even_acceptance(times: ForwardTimes, gammas: Collection[int]) -> float | None:
    """The acceptance rate at which the speedup at the best of `gammas` is 1, for iid acceptance; None if even an acceptance rate
    of 1 gives no speedup."""
    return break_even({gamma: times.round(gamma) / times.target[1] for gamma in gammas})


def break_even(costs: Mapping[int, float]) -> float | None:
    """The figure of `break_even_acceptance`, from the time of a step at each draft length relative to a step of plain
    decoding."""

    def pays(alpha: float) -> bool:
        return any(iid_tokens_per_call(alpha, gamma) >= cost for gamma, cost in costs.items())

    return _smallest(pays) if pays(1.0) else None


def rule_of_thumb_tokens(alpha: float, gamma: int) -> float:
    """alpha gamma + 1. Too high if alpha is the acceptance rate, because all tokens after a rejection are dropped; right if
    alpha is `draft_acceptance_rate`, accepted / drafted tokens as engines count them."""
    return alpha * gamma + 1


def draft_acceptance_rate(alpha: float, gamma: int) -> float:
    """Accepted / drafted tokens (`draft_acceptance_rate`) at acceptance rate alpha, for iid acceptance."""
    return (iid_tokens_per_call(alpha, gamma) - 1) / gamma


def acceptance_from_counted(counted: float, gamma: int) -> float:
    """Inverse of `draft_acceptance_rate`: the acceptance rate at which it is `counted` (0 to 1)."""
    return _smallest(lambda alpha: draft_acceptance_rate(alpha, gamma) >= counted)


def _smallest(holds: Callable[[float], bool]) -> float:
    """Smallest value in [0, 1] for which `holds`, by bisection; `holds` must be monotone and true at 1."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
