"""Requests that arrive during a prefill start together after it: batch arrivals. Pure.

Time is counted without prefills. Requests then arrive as a Poisson process, and each starts together with those that arrived
during its prefill, during theirs, and so on: the batch size has the Borel distribution of a busy period of prefills. While
the batch is full, a request starts only when another one ends, so starts are single; their rate counts the arrivals during
prefills.

The closed form assumes exponential request sizes. Requests of similar size that start together stay together for longer, by 2
/ (1 + cv^2), where cv^2 is the squared coefficient of variation of the sizes. This is exact for a batch cap of one
(Pollaczek-Khinchine) and, for processor sharing with batch arrivals (Kleinrock, Muntz and Rodemich 1971), in heavy traffic:
there the number present is the work present divided by the mean residual size E[S^2] / 2 E[S]. So batches are made larger by
this factor and rarer by the same.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, pdtrc

from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity

_TAIL = 1e-9
_MAX_SIZE = 4_000


@dataclass(frozen=True)
class BatchArrivals:
    """Arrival process of requests that start decoding, per second without prefills."""

    rate: float  # batches per second while the server has free places
    probability_K: Floats  # probability that a batch has k requests, entry k - 1
    single_rate: float  # requests per second while the server is full
    prefill_load: float  # utilisation by prefills

    @property
    def exceedance_K(self) -> Floats:
        """Batches per second with more than k requests, entry k."""
        exceedance_K: Floats = self.rate * np.cumsum(self.probability_K[::-1])[::-1]
        return exceedance_K

    @property
    def others_K(self) -> Floats:
        """Probability that a request arrives with k others in its batch, entry k."""
        size_K = np.arange(1, len(self.probability_K) + 1)
        others_K: Floats = size_K * self.probability_K / (size_K @ self.probability_K)
        return others_K

    def p_during_prefill(self, count: int) -> float:
        """Probability of `count` or more arrivals during the prefill of the request that takes the last free place."""
        return float(pdtrc(count - 1, self.prefill_load))


def batch_arrivals(rate: float, capacity: ServerCapacity, sizes: RequestSizes) -> BatchArrivals:
    """The arrivals at `rate` requests per second, below the stability limit."""
    prefill_load = rate * capacity.prefill
    others = (
        (1 / (1 - prefill_load) ** 2 - 1) * 2 / (1 + sizes.squared_cv)
        # Mean number of other requests in the batch, corrected for non-exponential sizes.
    )
    probability_K = borel(1 - (1 + others) ** -0.5)  # inverse of the mean batch size by prefill utilisation
    return BatchArrivals(
        rate / (1 - prefill_load) / float(np.arange(1, len(probability_K) + 1) @ probability_K),
        probability_K,
        rate * (1 + capacity.prefill / capacity.completion_interval),
        prefill_load,
    )


def borel(load: float) -> Floats:
    """Borel distribution: probability that a busy period of an M/D/1 queue at utilisation `load` (< 1) serves k, entry k - 1."""
    if load <= 0:
        return np.ones(1)
    count_K = np.arange(1.0, _MAX_SIZE + 1)
    probability_K = np.exp(-load * count_K + (count_K - 1) * np.log(load * count_K) - gammaln(count_K + 1))
    kept = int((1 - np.cumsum(probability_K) > _TAIL).sum()) + 1
    kept_K: Floats = probability_K[:kept] / probability_K[:kept].sum()
    return kept_K


def mean_group_prefills(share_M: Floats, cap: int, prefill_load: float) -> float:
    """Mean number of prefills of other requests in the same batch, limited by free places. `share_M`: share of the time with m
    requests present."""
    probability_K = borel(prefill_load)
    admitted_MK = np.minimum.outer(np.arange(cap, 0, -1), np.arange(1, len(probability_K) + 1))
    return float((1 - prefill_load) * share_M[:cap] @ (admitted_MK * (admitted_MK - 1)) @ probability_K)
