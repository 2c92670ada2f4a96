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

from pipeline.latency.load.batch_arrivals import BatchArrivals, batch_arrivals, prefills_met
from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity
from pipeline.latency.load.request_latency import RequestLatency, request_latency

_WAITS = 32  # equally likely waits in line that stand for all
_RARE, _LARGE = 1e-9, 1e200
_NEVER = 1e-12
_MOST_IN_LINE = 5_000_000


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


def latency(rate: float, server: ServerCapacity, sizes: RequestSizes) -> Latency | None:
    """At `rate` requests a second (> 0); None where that is not stable."""
    if rate >= server.stability_limit:
        return None
    beginning = batch_arrivals(rate, server, sizes)
    cap, prefilled = server.cap, beginning.prefilled
    share_M = _present(server, beginning)
    present_M = np.arange(len(share_M))
    in_batch_M = np.minimum(present_M, cap)
    own = server.full_service / (server.full_service + server.prefill)  # share of a request's work that differs
    in_line = float(share_M @ (present_M - in_batch_M)) * (1 + sizes.variability * own**2) / 2
    known = min(len(share_M), 5 * cap + 100)
    meets_M = np.convolve(share_M[:known], beginning.mates_K)[:known]
    meets_M = np.append(meets_M, max(0.0, 1.0 - float(meets_M.sum())))
    stayed = request_latency(server, sizes, beginning, meets_M)
    step = float(share_M[1:cap] @ server.step_N[: cap - 1])
    admission = ((1 - prefilled) / 2 + prefilled) * step
    prefill = server.prefill * (1 + prefills_met(share_M, cap, prefilled))
    queue, queued = in_line / rate, float(meets_M[cap:].sum())
    return Latency(
        queue + admission + prefill + stayed.mean,
        _quantile(0.95, sizes, stayed, admission + prefill, queue, queued),
        queue,
        admission,
        prefill,
        stayed.mean,
        rate * stayed.mean,
        float(1 - share_M[0] * (1 - prefilled)),
    )


def _present(server: ServerCapacity, beginning: BatchArrivals) -> Floats:
    """Share of the time between prefills with m requests present, batch and line, entry m: what goes up past m comes down."""
    cap, beyond_K = server.cap, beginning.beyond_K
    weights, filling, most = [1.0], 0.0, 1.0
    while not (len(weights) > cap and beginning.late(len(weights) - cap) < _NEVER):
        m = len(weights)
        if m <= cap:
            filling = up = sum(weight * over for weight, over in zip(reversed(weights), beyond_K, strict=False))
        else:  # a cluster that leaves no place, and those who came meanwhile
            up = filling * beginning.late(m - cap) + weights[-1] * beginning.alone
        weights.append(float(up * server.service_N[min(m, cap) - 1]) / min(m, cap))
        if weights[-1] > _LARGE:
            filling, most = filling / weights[-1], 1.0
            weights = [weight / weights[-1] for weight in weights]
        most = max(most, weights[-1])
        if weights[-1] < min(weights[-2], _RARE * most):
            break
    rarer = min(beginning.alone * server.full_service, 1 - _RARE)  # from here on, each of the one before
    further = log(_RARE * most / weights[-1]) / log(rarer) if weights[-1] > _RARE * most else 0.0
    tail_L = weights[-1] * rarer ** np.arange(1.0, 1 + min(further, _MOST_IN_LINE))
    found = np.append(np.pad(weights, (0, max(0, cap + 1 - len(weights)))), tail_L)
    share_M: Floats = found / found.sum()
    return share_M


def _quantile(
    level: float, sizes: RequestSizes, stayed: RequestLatency, before: float, queue: float, queued: float
) -> float:
    """Of a request's seconds: by size as its stay, with its own luck beside, in three moments (Pearson's third); the share that
    finds a full batch waits an exponential time in line."""
    mean_W = before + np.interp(sizes.mean_W, stayed.size_S, stayed.mean_S)
    company_W = np.interp(sizes.mean_W, stayed.size_S, stayed.variance_S)
    luck_W = sizes.variance_W * stayed.mean**2
    spread_W = np.sqrt(company_W + luck_W) + 1e-9 * stayed.mean
    skew_W = np.interp(sizes.mean_W, stayed.size_S, stayed.skew_S) * (company_W / spread_W**2) ** 1.5
    waits_K, weights_K = np.zeros(1), np.ones(1)
    if queued > 0 and queue > 0:
        waits_K = np.append(waits_K, -queue / queued * np.log(1 - (np.arange(_WAITS) + 0.5) / _WAITS))
        weights_K = np.append(1 - queued, np.full(_WAITS, queued / _WAITS))

    def over(seconds: float) -> float:
        below_WK = pearson3.cdf((seconds - mean_W[:, None] - waits_K) / spread_W[:, None], skew_W[:, None])
        return float(below_WK.mean(0) @ weights_K) - level

    return float(brentq(over, 0.0, mean_W.max() + waits_K.max() + 12 * spread_W.max()))
