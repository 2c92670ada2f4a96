"""Latency of a server that batches continuously, under load, without simulating it. Pure.

A step serves every request of the batch at once, and a request's answer takes s(n) seconds while n are in the batch: its steps
(rounds) times what a step of n takes. Requests that arrive at random, `rate` a second, then share the server as in generalised
processor sharing (Cohen 1979): the number n in the batch has the weight

    pi(n) ~ prod over k = 1..n of  rate * s(k) / k

however unequal requests are. For s(n) = S (a + b n) the mean is S (a + b) / (1 - rate S b), the formula of Kong et al. 2026
(arXiv 2605.15051); it goes on to measured times, draft lengths that change with n, and experts woken one by one.

On top of it a prefill stops everybody, and whoever comes during one begins together with the next: between prefills requests
arrive in clusters whose sizes are those of busy periods (Borel), which lengthens what pi(n) says and the tail above all. An
arrival waits for the step under way. Above the batch cap requests wait in line: as in M/M/c, scaled by (1 + cv^2) / 2 (Allen and
Cunneen 1990), which is exact for a batch of one without prefills. Where prefills take more than half of the time all this is a
coarse guess, and the simulation is to be asked. The spread of a request's time is that of the company it meets, which comes and
goes as if others' sizes were exponential.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import bmat, csr_array, diags_array
from scipy.sparse.linalg import expm_multiply
from scipy.special import gammaln
from scipy.stats import pearson3

Floats = NDArray[np.float64]

_WAITS = 32  # equally likely waits in line that stand for all
_SIZES = 12  # sizes of a request whose spread is computed; between them it is interpolated
_RARE = 1e-9
_MOST_CLUSTER, _MOST_PRESENT = 4_000, 20_000


@dataclass(frozen=True)
class Server:
    """By the number n in the batch, entry n - 1; the last is the batch cap. Seconds."""

    service_N: Floats  # of a mean request's whole answer
    step_N: Floats  # of a step
    prefill: float  # by which a mean request's prompt holds everybody up

    @property
    def cap(self) -> int:
        return len(self.service_N)

    @property
    def stability_limit(self) -> float:
        """Requests a second from which the line grows without end."""
        return float(1.0 / (self.prefill + self.service_N[-1] / self.cap))


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
    prefill: float  # its own, and of those that begin with it
    service: float  # its own steps, with the prefills of later ones among them
    batch: float  # mean number in the batch
    busy: float  # share of time with something to do


def latency(rate: float, server: Server, sizes: Sizes) -> Latency | None:
    """At `rate` requests a second (> 0); None where that is not stable."""
    if rate >= server.stability_limit:
        return None
    cap, stopped = server.cap, rate * server.prefill  # the share of time that prefills take
    cluster_K = _clusters(stopped)
    share_M = _present(rate, server, cluster_K)
    present_M = np.arange(len(share_M))
    in_batch_M = np.minimum(present_M, cap)
    in_line = float(share_M @ (present_M - in_batch_M)) * (1 + sizes.variability) / 2
    mates_K, meets_M = _company(share_M, cluster_K)
    queued = float(meets_M[cap:].sum())
    stay = _stay(rate, server, cluster_K, meets_M, float(sizes.mean_W.max()))
    step = float(share_M[1:cap] @ server.step_N[: cap - 1])
    admission = ((1 - stopped) / 2 + stopped) * step
    prefill = server.prefill * (1 + float(mates_K @ np.arange(len(mates_K))))
    queue, service = in_line / rate, stay.mean
    return Latency(
        queue + admission + prefill + service,
        _quantile(0.95, sizes, stay, admission + prefill, queue, queued),
        queue,
        admission,
        prefill,
        service,
        float(share_M @ in_batch_M),
        float(1 - share_M[0] * (1 - stopped)),
    )


def _clusters(load: float) -> Floats:
    """Chance that k requests begin together, entry k - 1 (Borel): one, those who come during its prefill, during theirs, ..."""
    if load <= 0:
        return np.ones(1)
    count_K = np.arange(1.0, _MOST_CLUSTER + 1)
    chance_K = np.exp(-load * count_K + (count_K - 1) * np.log(load * count_K) - gammaln(count_K + 1))
    kept = int((1 - np.cumsum(chance_K) > _RARE).sum()) + 1
    kept_K: Floats = chance_K[:kept] / chance_K[:kept].sum()
    return kept_K


def _present(rate: float, server: Server, cluster_K: Floats) -> Floats:
    """Share of the time between prefills with m requests present, batch and line, entry m: what goes up past m comes down."""
    cap = server.cap
    at_least_K = np.cumsum(cluster_K[::-1])[::-1] * rate
    weights, most = [1.0], 1.0
    while len(weights) < _MOST_PRESENT:
        m = len(weights)
        up = sum(weight * over for weight, over in zip(reversed(weights[-len(at_least_K) :]), at_least_K, strict=False))
        weights.append(up * float(server.service_N[min(m, cap) - 1]) / min(m, cap))
        if weights[-1] > 1e200:
            weights, most = [weight / weights[-1] for weight in weights], 1.0
        most = max(most, weights[-1])
        if weights[-1] < min(weights[-2], _RARE * most):
            break
    found = np.pad(weights, (0, max(0, cap + 1 - len(weights))))
    share_M: Floats = found / found.sum()
    return share_M


def _company(share_M: Floats, cluster_K: Floats) -> tuple[Floats, Floats]:
    """Of one request: the chance of k others beginning with it, entry k; and of m others being there when it begins."""
    sizes_K = np.arange(1, len(cluster_K) + 1)
    mates_K: Floats = sizes_K * cluster_K / (sizes_K @ cluster_K)
    return mates_K, np.convolve(share_M, mates_K)


@dataclass(frozen=True)
class _Stay:
    """Seconds of a request's steps: of a mean request, and by its size over the mean one's, first entry a size of 0."""

    size_S: Floats
    mean_S: Floats
    variance_S: Floats
    skew_S: Floats

    @property
    def mean(self) -> float:
        return float(np.interp(1.0, self.size_S, self.mean_S))


def _stay(rate: float, server: Server, cluster_K: Floats, meets_M: Floats, largest: float) -> _Stay:
    """The first three moments of a stay, as functions of its size u and of the m others there:

        d v_i / du = G v_i + i s v_(i-1) + what a cluster's prefill adds at once to those moments

    G lets clusters of k others in at rate s(m + 1) * rate and, with sizes forgotten, each of the batch out at rate 1; one unit
    of u is one mean request. Past what is met at all, or a line three batches long, m counts no further.
    """
    cap = server.cap
    states = min(int(np.flatnonzero(meets_M > _RARE * meets_M.max())[-1]) + 2 + cap // 4, 4 * cap + 64)
    meets_M = np.pad(meets_M, (0, max(0, states - len(meets_M))))
    start_M = np.append(meets_M[: states - 1], meets_M[states - 1 :].sum())
    others_M = np.arange(states)
    seconds_M = server.service_N[np.minimum(others_M, cap - 1)]
    raised: list[Any] = [csr_array((states, states)) for _ in range(4)]  # E of (k prefill)^i on entering clusters, by i
    for k, chance in enumerate(cluster_K, 1):
        jump = _jump(others_M, k) * chance
        raised = [matrix + jump * (k * server.prefill) ** power for power, matrix in enumerate(raised)]
    enters = diags_array(rate * seconds_M)
    raised = [enters @ matrix for matrix in raised]
    leaves_M = np.minimum(others_M, cap - 1).astype(np.float64)
    generator = raised[0] - enters + diags_array([leaves_M[1:], -leaves_M], offsets=[-1, 0], shape=(states, states))
    passes, ones = diags_array(seconds_M), np.ones((states, 1))
    first, second, third = (matrix @ ones for matrix in raised[1:])
    system = bmat(  # of v_1, v_2, v_3 and the constant 1
        [
            [generator, None, None, csr_array(seconds_M[:, None] + first)],
            [2 * (passes + raised[1]), generator, None, csr_array(second)],
            [3 * raised[2], 3 * (passes + raised[1]), generator, csr_array(third)],
            [None, None, None, csr_array((1, 1))],
        ],
        format="csr",
    )
    begin = np.append(np.zeros(3 * states), 1.0)
    reach = max(largest, 1.0)
    moments_S = expm_multiply(system, begin, start=0.0, stop=reach, num=_SIZES + 1)[:, :-1]
    one_S, two_S, three_S = moments_S.reshape(-1, 3, states).transpose(1, 0, 2) @ start_M
    variance_S = np.maximum(two_S - one_S**2, 0.0)
    seen_S = variance_S > 1e-9 * one_S**2  # less is rounding
    skew_S = (
        np.where(seen_S, three_S - 3 * one_S * two_S + 2 * one_S**3, 0.0) / np.where(seen_S, variance_S, 1.0) ** 1.5
    )
    return _Stay(np.linspace(0.0, reach, _SIZES + 1), one_S, variance_S, skew_S)


def _jump(others_M: NDArray[np.int64], k: int) -> Any:
    """From m others to m + k, the last state holding all beyond."""
    last = len(others_M) - 1
    return csr_array((np.ones(last + 1), (others_M, np.minimum(others_M + k, last))), shape=(last + 1, last + 1))


def _quantile(level: float, sizes: Sizes, stay: _Stay, before: float, queue: float, queued: float) -> float:
    """Of a request's seconds: by size as its stay, with its own luck beside, in three moments (Pearson's third); the share that
    finds a full batch waits an exponential time in line."""
    mean_W = before + np.interp(sizes.mean_W, stay.size_S, stay.mean_S)
    company_W = np.interp(sizes.mean_W, stay.size_S, stay.variance_S)
    luck_W = sizes.variance_W * stay.mean**2
    spread_W = np.sqrt(company_W + luck_W) + 1e-9 * stay.mean
    skew_W = np.interp(sizes.mean_W, stay.size_S, stay.skew_S) * (company_W / spread_W**2) ** 1.5
    waits_K, weights_K = np.zeros(1), np.ones(1)
    if queued > 0 and queue > 0:
        waits_K = np.append(waits_K, -queue / queued * np.log(1 - (np.arange(_WAITS) + 0.5) / _WAITS))
        weights_K = np.append(1 - queued, np.full(_WAITS, queued / _WAITS))

    def over(seconds: float) -> float:
        below_WK = pearson3.cdf((seconds - mean_W[:, None] - waits_K) / spread_W[:, None], skew_W[:, None])
        return float(below_WK.mean(0) @ weights_K) - level

    return float(brentq(over, 0.0, mean_W.max() + waits_K.max() + 12 * spread_W.max()))
