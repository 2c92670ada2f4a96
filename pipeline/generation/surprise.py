"""Are completions samples of the distributions that the server reports? Finds a broken sampler, or a log of another target.

If a token x is sampled from p, the sum over listed tokens j of (1[x = j] - p_j) log p_j has mean 0, whatever came before. So its
total over a completion has mean 0 too, wherever the completion ends (a stopped martingale; the mean over its tokens has not). The
totals of many completions are compared with their standard error. Torch-free.

Shapes: N tokens, K listed tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError

# Both must be exceeded: 5 standard errors, which chance does once in a million shards (about normal totals), and a difference per
# token that rounding does not explain.
_STANDARD_ERRORS, _NATS, _FEWEST = 5.0, 0.02, 64


def surprise(tokens_N: NDArray[np.int32], ids_NK: NDArray[np.int32], log_p_NK: NDArray[np.float32]) -> float:
    """The total over N tokens, in nats. `log_p_NK`: of the distributions as sampled from; -inf for tokens that cannot be
    sampled."""
    finite_NK = np.isfinite(log_p_NK)
    log_p_NK = np.where(finite_NK, log_p_NK, 0.0).astype(np.float64)
    p_NK = np.where(finite_NK, np.exp(log_p_NK), 0.0)
    is_it_NK = (ids_NK == tokens_N[:, None]) & finite_NK
    return float(((is_it_NK - p_NK) * log_p_NK).sum())


def require_samples(totals: Sequence[float], tokens: int, recorded: bool = False) -> None:
    """UnderstudyError if completions with these totals, of `tokens` tokens together, are not samples of the distributions that
    were reported with them. `recorded`: they come from a log."""
    if len(totals) < _FEWEST:
        return
    mean, error = float(np.sum(totals)) / tokens, float(np.sqrt(np.sum(np.square(totals)))) / tokens
    if abs(mean) > max(_NATS, _STANDARD_ERRORS * error):
        found = f"log p is {mean:+.3f} nats per token from what samples have, {abs(mean) / error:.0f} standard errors"
        if recorded:
            raise UnderstudyError(
                f"the recorded answers are not samples of the target at `sampling`: {found}; the log is of other weights, "
                "settings or another chat template: shorten the window (corpus.sources.N.since), or set use_answers to false"
            )
        raise UnderstudyError(
            f"the completions are not samples of the log-probabilities that came with them: {found}; does the server's sampler "
            "work (vLLM issue 55005: "
            "not while speculating on a CPU), and do its log-probabilities belong to `sampling`?"
        )
