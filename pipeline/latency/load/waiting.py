"""Waiting time in the queue of a full batch. Pure.

A full batch is a queue with c servers, c the batch cap. Its waiting times lie between those for identical requests (M/D/c) and
those for exponential sizes (M/M/c), and Tijms (1994, Stochastic Models, section 4.3) interpolates the quantiles of the waiting
time of those that wait by the squared coefficient of variation: within a few percent up to 1. Above 1 the exponential waiting
time is scaled by (1 + cv^2) / 2 (Allen and Cunneen 1990). M/D/c is computed exactly: the number present evolves over one service
time D as j' = max(j - c, 0) + Poisson(rate D), and the waiting time follows from it (Franx 2001).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, pdtr, pdtrc, xlogy

from pipeline.latency.load.capacity import Floats

_QUANTILES = 64  # equally likely quantiles of the waiting time
_GRID = 400  # points at which the distribution for identical requests is computed
_TAIL = 1e-7
_MAX_STATES = 1_200  # of M/D/c; a queue that is longer is so full that the sizes do not matter


@dataclass(frozen=True)
class WaitingTime:
    """The waiting time of the requests that wait for a place in the batch."""

    probability: float  # of having to wait, relative to exponential sizes
    seconds_K: Floats  # equally likely quantiles

    @property
    def mean(self) -> float:
        return float(self.seconds_K.mean())

    @property
    def variance_K(self) -> Floats:
        """Variance of the waiting times around each quantile, as if they were uniform between the middles to its neighbours."""
        edges = np.concatenate([[0.0], (self.seconds_K[1:] + self.seconds_K[:-1]) / 2, self.seconds_K[-1:]])
        variance_K: Floats = np.diff(edges) ** 2 / 12
        return variance_K


def waiting_time(rate: float, cap: int, interval: float, squared_cv: float) -> WaitingTime:
    """The waiting time at `rate` requests per second; a full batch of `cap` requests completes one every `interval` seconds,
    and rate * interval is below 1."""
    middle_K = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    exponential_K = -np.log1p(-middle_K)
    exponential_K *= interval / (1 - rate * interval) / exponential_K.mean()
    share = min(squared_cv, 1.0)
    identical = _identical(rate, cap, interval, middle_K) if share < 1 else None
    if identical is None:
        return WaitingTime(1.0, exponential_K * (1 + squared_cv) / 2)
    probability, seconds_K = identical
    return WaitingTime(share + (1 - share) * probability, share * exponential_K + (1 - share) * seconds_K)


def _identical(rate: float, cap: int, interval: float, middle_K: Floats) -> tuple[float, Floats] | None:
    """M/D/c: the probability of waiting relative to M/M/c, and quantiles of the waiting time of those that wait. None if the
    queue is too long to compute."""
    load = rate * interval
    growth = 2 * (1 - load)  # about the decay of the queue length per request
    states = int(cap + 8 * cap**0.5 + 40 + np.log(1 / _TAIL) / growth)
    if states > _MAX_STATES:
        return None
    present_M = _number_present(load * cap, cap, states)
    waits = float(present_M[cap:].sum())
    longest_Q = np.cumsum(np.append(present_M[: cap + 1].sum(), present_M[cap + 1 :]))  # P(at most q wait), entry q
    if waits < _TAIL:
        return 0.0, np.zeros(len(middle_K))
    last = interval * np.log(waits / _TAIL) / growth + interval
    at_T = np.linspace(0.0, last, _GRID)
    above_T = np.array([_exceeds(point, rate, cap, interval * cap, longest_Q) for point in at_T]) / waits
    above_T = np.minimum.accumulate(np.clip(above_T, 0.0, 1.0))
    seconds_K = np.interp(middle_K, 1 - above_T, at_T)
    queue = float(present_M[cap:] @ np.arange(states - cap))
    seconds_K *= queue / rate / waits / seconds_K.mean()  # the mean exactly, by Little's law
    return min(1.0, waits / _erlang_c(load * cap, cap)), seconds_K


def _number_present(arrivals: float, cap: int, states: int) -> Floats:
    """Stationary distribution of the number of requests present in M/D/c; `arrivals`: mean per service time."""
    count_M = np.arange(states)
    arrived_M = _poisson(count_M, arrivals)
    left_M = np.maximum(count_M - cap, 0)
    more_MM = count_M[None, :] - left_M[:, None]
    moves_MM = np.where(more_MM >= 0, arrived_M[np.maximum(more_MM, 0)], 0.0)
    moves_MM[:, -1] += 1 - moves_MM.sum(1)
    system_MM = moves_MM.T - np.eye(states)
    system_MM[-1] = 1.0
    found_M: Floats = np.maximum(np.linalg.solve(system_MM, np.append(np.zeros(states - 1), 1.0)), 0.0)
    share_M: Floats = found_M / found_M.sum()
    return share_M


def _exceeds(seconds: float, rate: float, cap: int, service: float, longest_Q: Floats) -> float:
    """P(waiting time > seconds): Franx (2001), equation 6."""
    whole = int(seconds // service) + 1
    within = rate * (whole * service - seconds)
    last = whole * cap - 1
    size_J = np.arange(last + 1)
    at_most_J = longest_Q[np.minimum(last - size_J, len(longest_Q) - 1)]
    return 1.0 - float(_poisson(size_J, within) @ at_most_J)


def _poisson(count_M: NDArray[np.int64], mean: float) -> Floats:
    """Probabilities. `scipy.stats` takes ten times as long for as short arrays as these."""
    probability_M: Floats = np.exp(xlogy(count_M, mean) - mean - gammaln(count_M + 1))
    return probability_M


def _erlang_c(offered: float, cap: int) -> float:
    """Probability of waiting in M/M/c."""
    full = float(pdtr(cap, offered) - pdtr(cap - 1, offered))  # Poisson probability of `cap`
    below = 1 - float(pdtrc(cap - 1, offered))
    waits = full / (1 - offered / cap)
    return waits / (below + waits)
