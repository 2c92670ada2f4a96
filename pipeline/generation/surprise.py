"""Are completions samples of the distributions that the server reports? Finds a broken sampler, a log of another target, and
answers that belong to other prompts.

If a token x is sampled from p, the sum over tokens j of (1[x = j] - p_j) f_j has mean 0 for any f, whatever came before. So its
total over a completion has mean 0 too, wherever the completion ends (a stopped martingale; the mean over its tokens has not). f
is log p, and for tokens that are not listed the smallest listed log p, so that it is known for every token. The totals of many
completions are compared with their standard error. So are the totals of the first tokens alone: an answer to another prompt is
unlikely in its first tokens, and soon explains the rest of itself. Torch-free.

Shapes: N tokens, K listed tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError

# Both must be exceeded: 5 standard errors, which chance does once in a million shards (about normal totals), and a difference per
# token that rounding does not explain.
_STANDARD_ERRORS, _NATS, _FEWEST = 5.0, 0.05, 64
_OPENING = 4  # first tokens of a completion


class Surprise(NamedTuple):
    """Of one completion, in nats."""

    total: float
    opening: float  # of its first tokens
    tokens: int
    opening_tokens: int


def surprise(tokens_N: NDArray[np.int32], ids_NK: NDArray[np.int32], log_p_NK: NDArray[np.float32]) -> Surprise:
    """Of N tokens. `log_p_NK`: of the distributions as sampled from; -inf for tokens that cannot be sampled."""
    finite_NK = np.isfinite(log_p_NK)
    log_p_NK = np.where(finite_NK, log_p_NK, 0.0).astype(np.float64)
    p_NK = np.where(finite_NK, np.exp(log_p_NK), 0.0)
    is_it_NK = (ids_NK == tokens_N[:, None]) & finite_NK
    rest_N, is_rest_N = 1.0 - p_NK.sum(1), ~is_it_NK.any(1)
    by_token_N = ((is_it_NK - p_NK) * log_p_NK).sum(1) + (is_rest_N - rest_N) * log_p_NK.min(1)
    opening_N = by_token_N[:_OPENING]
    return Surprise(float(by_token_N.sum()), float(opening_N.sum()), len(by_token_N), len(opening_N))


def require_samples(found: Sequence[Surprise], recorded: bool = False) -> None:
    """UnderstudyError if completions are not samples of the distributions that were reported with them. `recorded`: they come
    from a log."""
    if len(found) < _FEWEST:
        return
    wrong = _mean([one.total for one in found], sum(one.tokens for one in found), "log p")
    if not wrong:
        wrong = _mean(
            [one.opening for one in found], sum(one.opening_tokens for one in found), "log p of the first tokens"
        )
        if wrong and recorded:
            raise UnderstudyError(
                f"the recorded answers do not begin like samples of the target at `sampling`: {wrong}; they belong to other "
                "prompts, the chat template is another one, or many answers were left out, such as tool calls: check the log, or "
                "set use_answers to false"
            )
    if wrong:
        if recorded:
            raise UnderstudyError(
                f"the recorded answers are not samples of the target at `sampling`: {wrong}; the log is of other weights, "
                "settings or another chat template, or its answers belong to other prompts: shorten the window "
                "(corpus.sources.N.since), or set use_answers to false"
            )
        raise UnderstudyError(
            f"the completions are not samples of the log-probabilities that came with them: {wrong}; does the server's sampler "
            "work (vLLM issue 55005: "
            "not while speculating on a CPU), and do its log-probabilities belong to `sampling`?"
        )


def _mean(totals: Sequence[float], tokens: int, what: str) -> str:
    """How far the mean is from 0; empty if chance and rounding explain it."""
    mean, error = float(np.sum(totals)) / tokens, float(np.sqrt(np.sum(np.square(totals)))) / tokens
    if abs(mean) <= max(_NATS, _STANDARD_ERRORS * error):
        return ""
    return f"{what} differs by {mean:+.3f} nats per token from that of samples, {abs(mean) / error:.0f} standard errors"
