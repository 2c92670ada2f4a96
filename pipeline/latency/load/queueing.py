"""Latency of a server that batches continuously, under load, without simulating it. Pure.

A step serves every request of the batch at once, and a request's answer takes s(n) seconds while n are in the batch: its steps
(rounds) times what a step of n takes. Requests that arrive at random, `rate` a second, then share the server as in generalised
processor sharing (Cohen 1979): the number n in the batch has the weight

    pi(n) ~ prod over k = 1..n of  rate * s(k) / k

however unequal requests are. For s(n) = S (a + b n) the mean is S (a + b) / (1 - rate S b), the formula of Kong et al. 2026
(arXiv 2605.15051); it goes on to measured times, draft lengths that change with n, and experts woken one by one.

On top of it a prefill stops everybody, and whoever comes during one begins together with the next (`clusters`), which lengthens
what pi(n) says and the tail above all. An arrival waits for the step under way. Above the batch cap requests wait in line: as in
M/M/c, scaled by (1 + cv^2) / 2 (Allen and Cunneen 1990), which is exact for a batch of one without prefills. The spread of a
request's time is that of the company it meets (`stay`), which comes and goes as if others' sizes were exponential.
"""

from dataclasses import dataclass
from math import log

import numpy as np
from scipy.optimize import brentq
from scipy.stats import pearson3

from pipeline.latency.load.batch_arrivals import BatchArrivals, batch_arrivals, mean_group_prefills
from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity
from pipeline.latency.load.request_latency import RequestLatency, request_latency

_WAIT_QUANTILES = 32  # equally likely waits in line that stand for all
_TAIL, _LARGE = 1e-9, 1e200
_NEGLIGIBLE = 1e-12
_MAX_QUEUE = 5_000_000


@dataclass(frozen=True)
class Latency:
    """Seconds of a request from arrival to its last token, and what they are made of."""

    mean: float
    p95: float
    queue: float  # waiting for a place in the batch
    admission: float  # for the step under way
    prefill: float  # its own, and of those that begin with it
    service: float  # its own steps, with the prefills of later ones among them
    batch: float  # mean number in the batch
    busy: float  # share of time with something to do


def latency(rate: float, capacity: ServerCapacity, sizes: RequestSizes) -> Latency | None:
    """At `rate` requests a second (> 0); None where that is not stable."""
    if rate >= capacity.stability_limit:
        return None
    arrivals = batch_arrivals(rate, capacity, sizes)
    cap, prefill_load = capacity.cap, arrivals.prefill_load
    share_M = _number_present(capacity, arrivals)
    present_M = np.arange(len(share_M))
    in_batch_M = np.minimum(present_M, cap)
    decode_share = capacity.completion_interval / (
        capacity.completion_interval + capacity.prefill
    )  # share of a request's work that differs
    queue_length = float(share_M @ (present_M - in_batch_M)) * (1 + sizes.squared_cv * decode_share**2) / 2
    known = min(len(share_M), 5 * cap + 100)
    found_M = np.convolve(share_M[:known], arrivals.others_K)[:known]
    found_M = np.append(found_M, max(0.0, 1.0 - float(found_M.sum())))
    in_batch = request_latency(capacity, sizes, arrivals, found_M)
    step = float(share_M[1:cap] @ capacity.step_N[: cap - 1])
    admission = ((1 - prefill_load) / 2 + prefill_load) * step
    prefill = capacity.prefill * (1 + mean_group_prefills(share_M, cap, prefill_load))
    queue, queued = queue_length / rate, float(found_M[cap:].sum())
    return Latency(
        queue + admission + prefill + in_batch.mean,
        _quantile(0.95, sizes, in_batch, admission + prefill, queue, queued),
        queue,
        admission,
        prefill,
        in_batch.mean,
        rate * in_batch.mean,
        float(1 - share_M[0] * (1 - prefill_load)),
    )


def _number_present(capacity: ServerCapacity, arrivals: BatchArrivals) -> Floats:
    """Share of the time between prefills with m requests present, batch and line, entry m: what goes up past m comes down."""
    cap, exceedance_K = capacity.cap, arrivals.exceedance_K
    weights, partial, largest = [1.0], 0.0, 1.0
    while not (len(weights) > cap and arrivals.p_during_prefill(len(weights) - cap) < _NEGLIGIBLE):
        m = len(weights)
        if m <= cap:
            partial = up = sum(weight * excess for weight, excess in zip(reversed(weights), exceedance_K, strict=False))
        else:  # a cluster that leaves no place, and those who came meanwhile
            up = partial * arrivals.p_during_prefill(m - cap) + weights[-1] * arrivals.single_rate
        weights.append(float(up * capacity.service_N[min(m, cap) - 1]) / min(m, cap))
        if weights[-1] > _LARGE:
            partial, largest = partial / weights[-1], 1.0
            weights = [weight / weights[-1] for weight in weights]
        largest = max(largest, weights[-1])
        if weights[-1] < min(weights[-2], _TAIL * largest):
            break
    ratio = min(arrivals.single_rate * capacity.completion_interval, 1 - _TAIL)  # from here on, each of the one before
    extra = log(_TAIL * largest / weights[-1]) / log(ratio) if weights[-1] > _TAIL * largest else 0.0
    tail_L = weights[-1] * ratio ** np.arange(1.0, 1 + min(extra, _MAX_QUEUE))
    found = np.append(np.pad(weights, (0, max(0, cap + 1 - len(weights)))), tail_L)
    share_M: Floats = found / found.sum()
    return share_M


def _quantile(
    level: float, sizes: RequestSizes, in_batch: RequestLatency, offset: float, queue: float, queued: float
) -> float:
    """Of a request's seconds: by size as its stay, with its own luck beside, in three moments (Pearson's third); the share that
    finds a full batch waits an exponential time in line."""
    mean_W = offset + np.interp(sizes.mean_W, in_batch.size_S, in_batch.mean_S)
    interference_W = np.interp(sizes.mean_W, in_batch.size_S, in_batch.variance_S)
    acceptance_W = sizes.variance_W * in_batch.mean**2
    spread_W = np.sqrt(interference_W + acceptance_W) + 1e-9 * in_batch.mean
    skew_W = np.interp(sizes.mean_W, in_batch.size_S, in_batch.skew_S) * (interference_W / spread_W**2) ** 1.5
    waits_K, weights_K = np.zeros(1), np.ones(1)
    if queued > 0 and queue > 0:
        waits_K = np.append(waits_K, -queue / queued * np.log(1 - (np.arange(_WAIT_QUANTILES) + 0.5) / _WAIT_QUANTILES))
        weights_K = np.append(1 - queued, np.full(_WAIT_QUANTILES, queued / _WAIT_QUANTILES))

    def excess(seconds: float) -> float:
        below_WK = pearson3.cdf((seconds - mean_W[:, None] - waits_K) / spread_W[:, None], skew_W[:, None])
        return float(below_WK.mean(0) @ weights_K) - level

    return float(brentq(excess, 0.0, mean_W.max() + waits_K.max() + 12 * spread_W.max()))
