"""Who comes during a prefill begins with the next, so that requests begin in clusters. Pure.

Time is counted without prefills. Requests then come `rate` a second, each with those who came during its prefill, during theirs,
and so on: as many as are served in a busy period (Borel). A batch that is full takes one for one that ends: there they come
singly, so often as their prefills make them.

The closed form takes sizes for exponential. Requests of like sizes that begin together keep each other company for longer than
such do: by 2 / (1 + cv^2), for sizes of squared variation cv^2. That is exact for a batch of one (Pollaczek and Khinchine) and,
on a processor shared by all (Kleinrock, Muntz and Rodemich 1971, for batches of arrivals), where it is nearly always busy: there
the number present is the work present over what is left of a request met at random, E[S^2] / 2 E[S]. So the clusters are taken to
be so much larger, and so much rarer.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, pdtrc

from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity

_TAIL = 1e-9
_MAX_SIZE = 4_000


@dataclass(frozen=True)
class BatchArrivals:
    """Requests that begin, by seconds without prefills."""

    rate: float  # clusters a second, while there is room
    probability_K: Floats  # of k requests in one, entry k - 1
    single_rate: float  # requests a second, singly, while the batch is full
    prefill_load: float  # share of the time that prefills take

    @property
    def exceedance_K(self) -> Floats:
        """BatchArrivals a second of more than k requests, entry k."""
        exceedance_K: Floats = self.rate * np.cumsum(self.probability_K[::-1])[::-1]
        return exceedance_K

    @property
    def others_K(self) -> Floats:
        """Of a request, the chance of k others in its cluster, entry k."""
        size_K = np.arange(1, len(self.probability_K) + 1)
        others_K: Floats = size_K * self.probability_K / (size_K @ self.probability_K)
        return others_K

    def p_during_prefill(self, count: int) -> float:
        """Chance that `count` requests or more come during the prefill that takes the last place."""
        return float(pdtrc(count - 1, self.prefill_load))


def batch_arrivals(rate: float, capacity: ServerCapacity, sizes: RequestSizes) -> BatchArrivals:
    """At `rate` requests a second, fewer than the server can take."""
    prefill_load = rate * capacity.prefill
    others = (1 / (1 - prefill_load) ** 2 - 1) * 2 / (1 + sizes.squared_cv)  # of the mean request, as if exponential
    probability_K = borel(1 - (1 + others) ** -0.5)  # of the share of prefills that has so many
    return BatchArrivals(
        rate / (1 - prefill_load) / float(np.arange(1, len(probability_K) + 1) @ probability_K),
        probability_K,
        rate * (1 + capacity.prefill / capacity.completion_interval),
        prefill_load,
    )


def borel(load: float) -> Floats:
    """Chance that k are served in a busy period of work that comes at `load` (below 1) a second in equal pieces, entry k - 1."""
    if load <= 0:
        return np.ones(1)
    count_K = np.arange(1.0, _MAX_SIZE + 1)
    probability_K = np.exp(-load * count_K + (count_K - 1) * np.log(load * count_K) - gammaln(count_K + 1))
    kept = int((1 - np.cumsum(probability_K) > _TAIL).sum()) + 1
    kept_K: Floats = probability_K[:kept] / probability_K[:kept].sum()
    return kept_K


def mean_group_prefills(share_M: Floats, cap: int, prefill_load: float) -> float:
    """Prefills of others that a mean request begins with: of its cluster, as far as there are places. `share_M`: of the time,
    with m requests present."""
    probability_K = borel(prefill_load)
    admitted_MK = np.minimum.outer(np.arange(cap, 0, -1), np.arange(1, len(probability_K) + 1))
    return float((1 - prefill_load) * share_M[:cap] @ (admitted_MK * (admitted_MK - 1)) @ probability_K)
