"""Exact mean and variance of the counts of one decode (rounds, drafted and accepted tokens). numpy only.

Given a completion, its rounds are a Markov chain over (token, number of draft tokens accepted so far in the round). Every
count is a sum of rewards along the chain: a reward for each round start, and one for each accepted draft token. Let S(t) be
the expected future reward when a round starts at token t, and X(t, j) when a round reaches token t with j accepted tokens:

    X(t, j) = a_t (w_j + X(t + 1, j + 1)) + (1 - a_t) S(t + 1)        X(t, gamma) = S(t + 1)
    S(t)    = r_t + X(t, 0), and 0 at and past the end

computed from right to left. Variances follow by the law of total variance. Its terms are all positive, so there is no
cancellation as in E[A^2] - E[A]^2 (Markov reward processes: Sobel 1982).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.acceptance.rounds import Convention, Floats, Lengths, SortedCompletions, drafted_tokens, sort_by_length


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a count over the outcomes of one decode: (B,), or (B, G) by position in the block."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True)
class RoundMoments:
    """Moments of an engine's counters for each completion."""

    rounds: Moments  # target calls after the prefill
    drafted: Moments
    accepted: Moments  # an unclipped convention includes tokens accepted past the end
    per_position: Moments  # rounds whose draft token i was accepted


def round_moments(a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention) -> RoundMoments:
    """Mean and variance of rounds, drafted and accepted tokens. Arguments and errors are those of `expected_rounds`."""
    rows = sort_by_length(a_BT, lengths_B, gamma, convention)

    def block(t: int, own_B: Lengths) -> Lengths:
        return drafted_tokens(t, own_B, gamma, convention)

    def accepted(rewards_G: Floats) -> Moments:
        return _backward(rows, gamma, convention.start, lambda t, own_B: 0, rewards_G)

    places = [accepted(row) for row in np.eye(gamma)]
    return RoundMoments(
        rounds=_backward(rows, gamma, convention.start, lambda t, own_B: 1),
        drafted=_backward(rows, gamma, convention.start, block),
        accepted=accepted(np.ones(gamma)),
        per_position=Moments(
            np.stack([place.mean for place in places], axis=1), np.stack([place.variance for place in places], axis=1)
        ),
    )


def rounds_variance(a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention) -> Floats:
    """Variance of the number of rounds of each completion, (B,). Cheaper than `round_moments`, which includes it."""
    rows = sort_by_length(a_BT, lengths_B, gamma, convention)
    return _backward(rows, gamma, convention.start, lambda t, own_B: 1).variance


def _backward(
    rows: SortedCompletions,
    gamma: int,
    start: int,
    at_start: Callable[[int, Lengths], Lengths | int],
    rewards_G: Floats | None = None,
) -> Moments:
    """Moments of the total reward: `at_start(t, lengths)` for every round that starts at t, and `rewards_G[j]` for every
    accepted draft token at position j of its block."""
    batch = len(rows.lengths_B)
    mean_JB, variance_JB = np.zeros((gamma + 1, batch)), np.zeros((gamma + 1, batch))
    mean_B, variance_B = np.zeros(batch), np.zeros(batch)  # S(t + 1) and its variance
    gap_buffer_GB, square_buffer_GB = np.empty((gamma, batch)), np.empty((gamma, batch))
    for t in range(len(rows.a_TPB) - 1, start - 1, -1):
        n = rows.running_T[t]
        a_PB, own_B, next_B, spread_B = rows.a_TPB[t, :, :n], rows.lengths_B[:n], mean_B[:n], variance_B[:n]
        gap_GB, square_GB, variance_GB = gap_buffer_GB[:, :n], square_buffer_GB[:, :n], variance_JB[:-1, :n]
        np.subtract(
            mean_JB[1:, :n], next_B, out=gap_GB
        )  # difference in future reward between accepting and rejecting token t
        if rewards_G is not None:
            gap_GB += rewards_G[:, None]
        np.multiply(gap_GB, gap_GB, out=square_GB)
        square_GB *= a_PB * (1 - a_PB)
        gap_GB *= a_PB
        np.subtract(variance_JB[1:, :n], spread_B, out=variance_GB)
        variance_GB *= a_PB
        variance_GB += spread_B
        variance_GB += square_GB
        np.add(gap_GB, next_B, out=mean_JB[:-1, :n])
        mean_JB[-1, :n], variance_JB[-1, :n] = next_B, spread_B
        mean_B[:n] = np.where(t < own_B, at_start(t, own_B) + mean_JB[0, :n], 0.0)
        variance_B[:n] = np.where(t < own_B, variance_JB[0, :n], 0.0)
    return Moments(rows.unsort(mean_B), rows.unsort(variance_B))
