"""Request latency under load on a server with continuous batching, in closed form. Pure.

A step serves all requests of the batch, and decoding a request takes s(n) seconds with n in the batch: its rounds times the
step time. Poisson arrivals at `rate` then share the server by generalised processor sharing (Cohen 1979): the number n in the
batch has the stationary weight

    pi(n) ~ prod over k = 1..n of  rate * s(k) / k

for any distribution of request sizes. For s(n) = S (a + b n) the mean sojourn time is S (a + b) / (1 - rate S b), the formula
of Kong et al. 2026 (arXiv 2605.15051); this form also covers measured tables, draft lengths that depend on n, and mixtures of
experts.

Three effects are added. A prefill blocks the batch, and requests that arrive during it start together (`batch_arrivals`). An
arrival waits for the running step. Above the batch cap requests wait in a queue (`waiting`). The variance of a request's latency
comes from the number of other requests during its stay (`request_latency`), which evolves as if their sizes were exponential;
requests that waited start in a full batch, so they decode for longer.
"""

from dataclasses import dataclass, field
from math import log

import numpy as np

from pipeline.latency.load.batch_arrivals import BatchArrivals, batch_arrivals, borel, mean_group_prefills
from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity
from pipeline.latency.load.latency_distribution import LatencyDistribution, latency_distribution
from pipeline.latency.load.request_latency import request_latency
from pipeline.latency.load.waiting import waiting_time

_TAIL, _LARGE = 1e-9, 1e200
_NEGLIGIBLE = 1e-12
_MAX_QUEUE = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Request latency in seconds, arrival to last token, and its components."""

    mean: float
    queue: float  # queueing delay, for a place in the batch
    admission: float  # waiting for the running step to end
    prefill: float  # time to first token beyond these, with the prefills of requests that start together with it
    service: float  # decoding, with the prefills of later requests that block it
    batch: float  # mean batch size
    busy: float  # utilisation: share of the time with at least one request
    distribution: LatencyDistribution = field(compare=False, repr=False)

    def quantile(self, quantile: float) -> float:
        """In seconds. ValueError unless 0 < quantile < 1."""
        return self.distribution.quantile(quantile)


def latency(rate: float, capacity: ServerCapacity, sizes: RequestSizes) -> Latency | None:
    """The latency at `rate` > 0 requests per second; None if this is at or above the stability limit."""
    if rate >= capacity.stability_limit:
        return None
    arrivals = batch_arrivals(rate, capacity, sizes)
    cap, prefill_load = capacity.cap, arrivals.prefill_load
    share_M = _number_present(capacity, arrivals)
    # Only decoding varies between requests; a prefill is the same for all.
    decode_share = capacity.completion_interval / (capacity.completion_interval + capacity.prefill)
    interval = capacity.completion_interval + capacity.prefill
    waiting = waiting_time(rate, cap, interval, sizes.squared_cv * decode_share**2)
    known = min(len(share_M), 5 * cap + 100)
    found_M = np.convolve(share_M[:known], arrivals.others_K)[:known]
    found_M = np.append(found_M, max(0.0, 1.0 - float(found_M.sum())))
    in_batch = request_latency(capacity, sizes, arrivals, found_M)
    step = float(share_M[1:cap] @ capacity.step_N[: cap - 1])
    admission = ((1 - prefill_load) / 2 + prefill_load) * step
    prefill = capacity.prefill * (1 + mean_group_prefills(share_M, cap, prefill_load)) + capacity.before_decoding
    queued = _finds_full(share_M, cap, arrivals) * waiting.probability
    return Latency(
        mean=queued * waiting.mean + admission + prefill + in_batch.mean,
        queue=queued * waiting.mean,
        admission=admission,
        prefill=prefill,
        service=in_batch.mean,
        batch=rate * in_batch.mean,
        busy=float(1 - share_M[0] * (1 - prefill_load)),
        distribution=latency_distribution(sizes, in_batch, admission + prefill, waiting, queued),
    )


def _number_present(capacity: ServerCapacity, arrivals: BatchArrivals) -> Floats:
    """Stationary distribution of the number of requests present (batch and queue), entry m, in time without prefills. By level
    crossing: the rate of arrivals past m equals the rate of completions down to m."""
    cap, exceedance_K = capacity.cap, arrivals.exceedance_K
    weights, partial, largest = [1.0], 0.0, 1.0
    while not (len(weights) > cap and arrivals.p_during_prefill(len(weights) - cap) < _NEGLIGIBLE):
        m = len(weights)
        if m <= cap:
            partial = up = sum(weight * excess for weight, excess in zip(reversed(weights), exceedance_K, strict=False))
        else:  # a batch that takes the last places, and arrivals during its prefills
            up = partial * arrivals.p_during_prefill(m - cap) + weights[-1] * arrivals.single_rate
        weights.append(float(up * capacity.service_N[min(m, cap) - 1]) / min(m, cap))
        if weights[-1] > _LARGE:
            partial, largest = partial / weights[-1], 1.0
            weights = [weight / weights[-1] for weight in weights]
        largest = max(largest, weights[-1])
        if weights[-1] < min(weights[-2], _TAIL * largest):
            break
    ratio = min(arrivals.single_rate * capacity.completion_interval, 1 - _TAIL)  # geometric tail
    extra = log(_TAIL * largest / weights[-1]) / log(ratio) if weights[-1] > _TAIL * largest else 0.0
    tail_L = weights[-1] * ratio ** np.arange(1.0, 1 + min(extra, _MAX_QUEUE))
    weight_M = np.append(np.pad(weights, (0, max(0, cap + 1 - len(weights)))), tail_L)
    share_M: Floats = weight_M / weight_M.sum()
    return share_M


def _finds_full(share_M: Floats, cap: int, arrivals: BatchArrivals) -> float:
    """Probability that a request finds no free place: `cap` requests in the batch, or those that arrived with it and are
    prefilled first. The groups are those that arrive, not the larger ones for requests of similar size staying together."""
    group_K = borel(arrivals.prefill_load)
    size_K = np.arange(1, len(group_K) + 1)
    exceedance_K = np.append(np.cumsum(group_K[::-1])[::-1], 0.0)  # P(group of k or more), entry k - 1
    before_K = exceedance_K[: len(group_K)] / (size_K @ group_K)  # P(k - 1 of its group are before it)
    last_K = np.cumsum(before_K)[
        np.minimum(cap - 1 - np.arange(cap), len(group_K) - 1)
    ]  # P(free place | m present), entry m
    share_M = np.pad(share_M, (0, max(0, cap - len(share_M))))
    return max(0.0, 1.0 - float(share_M[:cap] @ last_K))
