"""Which draft length at which number of requests, from measured step times and measured acceptance. Pure.

With n requests in the batch a request's answer takes rounds(gamma) * step(gamma, n) seconds, whatever happened before; the
least of them in every state is also the least latency and the most throughput over all states.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def answers(rounds_G: Floats, step_GN: Floats) -> Floats:
    """Seconds of a mean request's answer by draft length and number in the batch: [gamma, n - 1]. `rounds_G[0]` is of plain
    decoding, a token a round."""
    return rounds_G[:, None] * step_GN


def best_lengths(rounds_G: Floats, step_GN: Floats) -> Ints:
    """The draft length for each number in the batch, the shorter of two that are as good; 0 where speculation does not pay."""
    lengths_N: Ints = answers(rounds_G, step_GN).argmin(0)
    return lengths_N


def speedups(rounds_G: Floats, step_GN: Floats) -> Floats:
    """Plain decoding's time over that of each draft length, at each number in the batch: [gamma, n - 1]."""
    answer_GN = answers(rounds_G, step_GN)
    speedup_GN: Floats = answer_GN[0] / answer_GN
    return speedup_GN


def last_paying(lengths_N: Ints) -> int:
    """The largest batch at which any draft length pays; 0 if none does."""
    paying = np.flatnonzero(lengths_N)
    return int(paying[-1]) + 1 if len(paying) else 0


def ranges(lengths_N: Sequence[int] | Ints) -> list[tuple[int, int, int]]:
    """(first batch, last batch, gamma) of each stretch of one draft length."""
    lengths_N = np.asarray(lengths_N)
    begins = np.flatnonzero(np.diff(lengths_N, prepend=-1))
    ends = np.append(begins[1:], len(lengths_N))
    return [(int(begin) + 1, int(end), int(lengths_N[begin])) for begin, end in zip(begins, ends, strict=True)]


def for_vllm(lengths_N: Sequence[int] | Ints) -> dict[str, Any]:
    """Keys of vLLM's `--speculative-config`."""
    return {
        "num_speculative_tokens": int(max(lengths_N)),
        "num_speculative_tokens_per_batch_size": [list(stretch) for stretch in ranges(lengths_N)],
    }
