"""What a draft is worth in time, from tokens per target call and forward times. Pure.

Times are of one forward pass of a batch at a context, in any one unit: target over 1 token, target over gamma + 1, draft
over 1 (Leviathan et al. 2023, theorem 3.8, with measured times in the place of its cost ratio c).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pipeline.acceptance.rounds import iid_tokens_per_call


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of a forward pass: `target[n]` over n tokens a sequence, `draft` over one."""

    target: Mapping[int, float]
    draft: float

    @property
    def cost_ratio(self) -> float:
        """c: a draft pass over a plain target pass."""
        return self.draft / self.target[1]

    def round(self, gamma: int) -> float:
        """Seconds of one speculative round: gamma draft passes and a target pass over gamma + 1 tokens."""
        return gamma * self.draft + self.target[gamma + 1]


def from_cost_ratio(ratio: float, gammas: int) -> ForwardTimes:
    """Times where only c is known and verification is free: a target pass takes 1, however many tokens it sees."""
    return ForwardTimes(dict.fromkeys(range(1, gammas + 2), 1.0), ratio)


def ideal_speedup(tokens_per_call: float, gamma: int, times: ForwardTimes) -> float:
    """Plain decoding's time over speculation's for as many tokens, nothing but forward passes counted."""
    return tokens_per_call * times.target[1] / times.round(gamma)


def best_gamma(tokens_per_call: Mapping[int, float], times: ForwardTimes) -> tuple[int, float]:
    """The draft length with the largest predicted speedup, and that speedup. ValueError for no draft length."""
    speedups = {gamma: ideal_speedup(omega, gamma, times) for gamma, omega in tokens_per_call.items()}
    gamma = max(speedups, key=lambda gamma: (speedups[gamma], -gamma))
    return gamma, speedups[gamma]


def break_even_acceptance(times: ForwardTimes, gammas: Collection[int]) -> float | None:
    """The acceptance rate at which the speedup at the best of `gammas` is 1, were acceptance the same and independent everywhere;
    None where not even a draft that is always right would pay."""
    return break_even({gamma: times.round(gamma) / times.target[1] for gamma in gammas})


def break_even(costs: Mapping[int, float]) -> float | None:
    """As `break_even_acceptance`, from what a step of each draft length takes over one of plain decoding."""

    def pays(alpha: float) -> bool:
        return any(iid_tokens_per_call(alpha, gamma) >= cost for gamma, cost in costs.items())

    return _smallest(pays) if pays(1.0) else None


def rule_of_thumb_tokens(alpha: float, gamma: int) -> float:
    """alpha gamma + 1, as if each draft token were kept or lost by itself. Too many: nothing behind a rejection is kept. It is
    right where alpha is what engines count, accepted over proposed draft tokens."""
    return alpha * gamma + 1


def draft_acceptance_rate(alpha: float, gamma: int) -> float:
    """Accepted over proposed draft tokens (`draft_acceptance_rate`), were acceptance the same and independent everywhere."""
    return (iid_tokens_per_call(alpha, gamma) - 1) / gamma


def acceptance_from_counted(counted: float, gamma: int) -> float:
    """The acceptance rate at which a share `counted` (0 to 1) of proposed draft tokens is accepted."""
    return _smallest(lambda alpha: draft_acceptance_rate(alpha, gamma) >= counted)


def _smallest(holds: Callable[[float], bool]) -> float:
    """From where on `holds`, which is so at 1."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
