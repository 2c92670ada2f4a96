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

_RARE = 1e-9
_MOST = 4_000


@dataclass(frozen=True)
class BatchArrivals:
    """Requests that begin, by seconds without prefills."""

    rate: float  # clusters a second, while there is room
    chance_K: Floats  # of k requests in one, entry k - 1
    alone: float  # requests a second, singly, while the batch is full
    prefilled: float  # share of the time that prefills take

    @property
    def beyond_K(self) -> Floats:
        """BatchArrivals a second of more than k requests, entry k."""
        beyond_K: Floats = self.rate * np.cumsum(self.chance_K[::-1])[::-1]
        return beyond_K

    @property
    def mates_K(self) -> Floats:
        """Of a request, the chance of k others in its cluster, entry k."""
        size_K = np.arange(1, len(self.chance_K) + 1)
        mates_K: Floats = size_K * self.chance_K / (size_K @ self.chance_K)
        return mates_K

    def late(self, count: int) -> float:
        """Chance that `count` requests or more come during the prefill that takes the last place."""
        return float(pdtrc(count - 1, self.prefilled))


def batch_arrivals(rate: float, server: ServerCapacity, sizes: RequestSizes) -> BatchArrivals:
    """At `rate` requests a second, fewer than the server can take."""
    prefilled = rate * server.prefill
    mates = (1 / (1 - prefilled) ** 2 - 1) * 2 / (1 + sizes.variability)  # of the mean request, as if exponential
    chance_K = borel(1 - (1 + mates) ** -0.5)  # of the share of prefills that has so many
    return BatchArrivals(
        rate / (1 - prefilled) / float(np.arange(1, len(chance_K) + 1) @ chance_K),
        chance_K,
        rate * (1 + server.prefill / server.full_service),
        prefilled,
    )


def borel(load: float) -> Floats:
    """Chance that k are served in a busy period of work that comes at `load` (below 1) a second in equal pieces, entry k - 1."""
    if load <= 0:
        return np.ones(1)
    count_K = np.arange(1.0, _MOST + 1)
    chance_K = np.exp(-load * count_K + (count_K - 1) * np.log(load * count_K) - gammaln(count_K + 1))
    kept = int((1 - np.cumsum(chance_K) > _RARE).sum()) + 1
    kept_K: Floats = chance_K[:kept] / chance_K[:kept].sum()
    return kept_K


def prefills_met(share_M: Floats, cap: int, prefilled: float) -> float:
    """Prefills of others that a mean request begins with: of its cluster, as far as there are places. `share_M`: of the time,
    with m requests present."""
    chance_K = borel(prefilled)
    begin_MK = np.minimum.outer(np.arange(cap, 0, -1), np.arange(1, len(chance_K) + 1))
    return float((1 - prefilled) * share_M[:cap] @ (begin_MK * (begin_MK - 1)) @ chance_K)
