"""Latency of a server that batches continuously, under load, in closed form. Pure.

A step serves every request of the batch at once, and a request's answer takes s(n) seconds while n are in the batch: its steps
(rounds) times what a step of n takes. Requests that arrive at random, `rate` a second, then share the server as in generalised
processor sharing (Cohen 1979), so that the number n in the batch has the weight

    pi(n) ~ prod over k = 1..n of  rate * s(k) / k

however unequal requests are. For s(n) = S (a + b n) the mean is S (a + b) / (1 - rate S b), the formula of Kong et al. 2026
(arXiv 2605.15051); it goes on to measured times, draft lengths that change with n, and experts woken one by one. On top of it an
arrival waits for the step under way, prefills hold everybody up, and above the batch cap requests wait in line: as in M/M/c,
scaled by (1 + cv^2) / 2 (Allen and Cunneen 1990), which is exact for a batch of one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

Floats = NDArray[np.float64]

_WAITS = 32  # equally likely waits in line that stand for all
_EVENED = 0.74  # of the variance that is left over one stay, where it is forgotten within about one: 2 (1 - (1 - 1/e))


@dataclass(frozen=True)
class Server:
    """By the number n in the batch, entry n - 1; the last is the batch cap. Seconds."""

    service_N: Floats  # of a mean request's whole answer
    step_N: Floats  # of a step
    prefill: float  # by which a mean request's prompt holds everybody up

    @property
    def stability_limit(self) -> float:
        """Requests a second from which the line grows without end."""
        return float(1.0 / (self.prefill + self.service_N[-1] / len(self.service_N)))


@dataclass(frozen=True)
class Sizes:
    """How unequal requests are: steps of each over the mean request's, W requests, each as likely as any other."""

    mean_W: Floats  # 1 on the average
    variance_W: Floats  # by the luck of acceptance

    @property
    def variability(self) -> float:
        """Squared coefficient of variation."""
        return float(self.mean_W.var() + self.variance_W.mean())


@dataclass(frozen=True)
class Latency:
    """Seconds of a request from arrival to its last token, and what they are made of."""

    mean: float
    p95: float
    queue: float  # waiting for a place in the batch
    admission: float  # for the step under way
    prefill: float  # its own
    service: float  # its own steps, with the prefills of others among them
    batch: float  # mean number in the batch
    busy: float  # share of time with something to do


def latency(rate: float, server: Server, sizes: Sizes) -> Latency | None:
    """At `rate` requests a second (> 0); None where that is not stable."""
    if rate >= server.stability_limit:
        return None
    cap, slower = len(server.service_N), 1 / (1 - rate * server.prefill)
    service_N, step_N, count_N = server.service_N * slower, server.step_N * slower, np.arange(1, cap + 1)
    log_N = np.cumsum(np.log(rate * service_N / count_N))
    top = max(0.0, float(log_N.max()))
    growth = rate * service_N[-1] / cap  # of the weight with one more in line
    weight_N = np.exp(log_N - top)
    weight_N[-1] /= 1 - growth  # all states with a full batch
    total = np.exp(-top) + weight_N.sum()
    share_N = weight_N / total  # of time
    batch = float(share_N @ count_N)
    in_line = float(share_N[-1]) * growth / (1 - growth) * (1 + sizes.variability) / 2
    queue, service = in_line / rate, batch / rate
    admission = float(share_N[:-1] @ step_N[:-1]) / 2
    before = admission + server.prefill
    p95 = _quantile(
        0.95, sizes, service, _spread(share_N * count_N / batch, service_N), before, queue, float(share_N[-1])
    )
    return Latency(
        queue + before + service,
        p95,
        queue,
        admission,
        server.prefill,
        service,
        batch,
        float(1 - np.exp(-top) / total),
    )


def _spread(met_N: Floats, service_N: Floats) -> float:
    """Relative standard deviation of what a request's steps take, by the company that it meets."""
    mean = met_N @ service_N
    return float(np.sqrt(_EVENED * (met_N @ (service_N - mean) ** 2)) / mean)


def _quantile(
    level: float, sizes: Sizes, service: float, spread: float, before: float, queue: float, queued: float
) -> float:
    """Of a request's seconds. Its answer takes in proportion to its size (exact in processor sharing); company and luck spread it
    normally about that; the share that finds a full batch waits an exponential time in line."""
    mean_W = before + sizes.mean_W * service
    spread_W = service * np.sqrt((sizes.mean_W * spread) ** 2 + sizes.variance_W) + 1e-12 * service
    waits_K, weights_K = np.zeros(1), np.ones(1)
    if queued > 0:
        waits_K = np.append(waits_K, -queue / queued * np.log(1 - (np.arange(_WAITS) + 0.5) / _WAITS))
        weights_K = np.append(1 - queued, np.full(_WAITS, queued / _WAITS))

    def over(seconds: float) -> float:
        below_WK = ndtr((seconds - mean_W[:, None] - waits_K) / spread_W[:, None])
        return float(below_WK.mean(0) @ weights_K) - level

    return float(brentq(over, 0.0, mean_W.max() + waits_K.max() + 8 * spread_W.max()))
