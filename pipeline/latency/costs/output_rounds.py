"""How many steps an output takes at a number of tokens per step, and back: the one relation between TPOT and steps. Pure.

The last step of an output is cut off at its end, so a short output takes more steps than its tokens / the tokens per step of an
engine's counters: 15 tokens at 3 a step take 5.4 and not 5. Times per token become steps by this function, and steps become the
time of a request by the same (`expected_rounds`).
"""

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds, iid_tokens_per_call

_EXACT = 512  # tokens of an output beyond which each further step has the mean number of tokens


def acceptance_rate(tokens_per_step: float, gamma: int) -> float:
    """The acceptance rate per token with which a step of draft length `gamma` gives as many tokens."""
    if not 1 < tokens_per_step < gamma + 1:
        return float(tokens_per_step > 1)
    return float(brentq(lambda alpha: iid_tokens_per_call(alpha, gamma) - tokens_per_step, 0.0, 1.0))


def tokens_per_round(tokens_per_step: float, gamma: int, output_tokens: float | None) -> float:
    """Tokens after the first / steps that they take, in an output of this mean length; None: a long one."""
    if not gamma or output_tokens is None or output_tokens < 2:
        return tokens_per_step
    exact = min(int(output_tokens), _EXACT)
    rounds = _rounds(acceptance_rate(tokens_per_step, gamma), gamma, exact) + (output_tokens - exact) / tokens_per_step
    return (output_tokens - 1) / rounds


def tokens_per_step(per_round: float, gamma: int, output_tokens: float | None) -> float:
    """Inverse of `tokens_per_round`; the nearest that is possible."""
    if not gamma or output_tokens is None or output_tokens < 2:
        return per_round

    def excess(tokens: float) -> float:
        return tokens_per_round(tokens, gamma, output_tokens) - per_round

    if excess(gamma + 1.0) <= 0:
        return gamma + 1.0
    return 1.0 if excess(1.0) >= 0 else float(brentq(excess, 1.0, gamma + 1.0, xtol=1e-6))


@lru_cache(maxsize=4096)
def _rounds(alpha: float, gamma: int, tokens: int) -> float:
    expected = expected_rounds(np.full((1, tokens), alpha), np.array([tokens]), gamma, CONVENTIONS["user"])
    return float(expected.rounds_B[0])
