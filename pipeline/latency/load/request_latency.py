"""Time that a request spends in the batch (sojourn time), by its size, while other requests come and go. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import bmat, csr_array, diags_array, eye_array
from scipy.sparse.linalg import spsolve
from scipy.special import gammaln, xlogy

from pipeline.latency.load.batch_arrivals import BatchArrivals
from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity

_SIZES = 12  # number of sizes at which moments are computed; interpolated between
_TAIL = 1e-9


@dataclass(frozen=True)
class RequestLatency:
    """Seconds in the batch (decoding and prefills of others), by size relative to the mean; the first size is 0."""

    mean: float  # over all requests
    size_S: Floats
    direct: "LatencyMoments"  # of those that found a free place
    queued: "LatencyMoments"  # of those that waited: they start in a full batch


@dataclass(frozen=True)
class LatencyMoments:
    """Moments of the sojourn time by size."""

    mean_S: Floats
    variance_S: Floats
    skew_S: Floats


@dataclass(frozen=True)
class _Transitions:
    """Transitions of the number m of other requests: E transitions, rates per unit of a request's size."""

    states: int
    from_E: NDArray[np.int64]
    to_E: NDArray[np.int64]
    rate_E: Floats
    prefill_E: Floats  # time of the prefills that come with it, in units

    def raised(self, power: int) -> csr_array:
        """Matrix of transition rates, each times its prefill time to `power`."""
        return csr_array((self.rate_E * self.prefill_E**power, (self.from_E, self.to_E)), (self.states, self.states))


def request_latency(
    capacity: ServerCapacity, sizes: RequestSizes, arrivals: BatchArrivals, found_M: Floats
) -> RequestLatency:
    """The first three moments v_i of the sojourn time, as functions of the size u and the number m of other requests (`found_M`:
    distribution of m at the start):

        d v_i / du = G v_i + i s v_(i-1) + the jumps of these moments at a prefill

    G is the generator of m: one unit of u (the mean request) takes s(m + 1) seconds, during which others arrive, and each other
    request in the batch ends at rate 1, as if sizes were exponential. m is truncated where its probability is negligible, or at a
    queue of three batches.

    For exponential sizes the mean is exact (Little's law), so the moments are scaled to this mean.
    """
    cap = capacity.cap
    states = min(int(np.flatnonzero(found_M > _TAIL * found_M.max())[-1]) + 2 + cap // 4, 4 * cap + 64)
    found_M = np.pad(found_M, (0, max(0, states - len(found_M))))
    start_M = np.append(found_M[: states - 1], found_M[states - 1 :].sum())
    seconds_M = capacity.service_N[np.minimum(np.arange(states), cap - 1)]
    unit = float(seconds_M.max())
    transitions = _transitions(capacity, arrivals, seconds_M, unit)
    raised = [transitions.raised(power) for power in range(4)]
    generator = raised[0] - diags_array(raised[0].sum(1))
    first, second, third = (matrix.sum(1)[:, None] for matrix in raised[1:])
    elapsed = diags_array(seconds_M / unit)
    system = bmat(  # for v_1, v_2, v_3 and the constant 1
        [
            [generator, None, None, csr_array(seconds_M[:, None] / unit + first)],
            [2 * (elapsed + raised[1]), generator, None, csr_array(second)],
            [3 * raised[2], 3 * (elapsed + raised[1]), generator, csr_array(third)],
            [None, None, None, csr_array((1, 1))],
        ],
        format="csr",
    )
    size_S = np.linspace(0.0, max(float(sizes.mean_W.max()), 1.0), _SIZES + 1)
    moments_SM = _grown(system, np.append(np.zeros(3 * states), 1.0), size_S)[:, :-1]
    moments_3SM = moments_SM.reshape(-1, 3, states).transpose(1, 0, 2)
    mean = float(start_M @ spsolve((eye_array(states) - generator).tocsc(), seconds_M / unit + first[:, 0]))
    scale = unit * mean / float(np.interp(sizes.mean_W, size_S, moments_3SM[0] @ start_M).mean())
    direct_M, queued_M = start_M.copy(), np.zeros(states)
    direct_M[cap:] = 0.0
    # A request that waited starts with a full batch around it and as many in the queue behind it as it found before it.
    queued_M[cap - 1 : states - 1] = start_M[cap:]
    return RequestLatency(
        unit * mean, size_S, *(_central(moments_3SM @ _normed(one_M), scale) for one_M in (direct_M, queued_M))
    )


def _grown(system: csr_array, begin_M: Floats, size_S: Floats) -> Floats:
    """exp(size * system) @ begin, (S, M), by uniformization (Jensen 1953): powers of I + system / rate with Poisson weights. Only
    the diagonal of the system is negative, so all terms are positive, and one series serves all sizes."""
    rate = -float(system.diagonal().min())
    step = eye_array(system.shape[0], format="csr") + system / rate
    most = rate * float(size_S[-1])
    count_K = np.arange(int(most + 10 * most**0.5) + 40)
    weight_KS = np.exp(xlogy(count_K[:, None], rate * size_S) - rate * size_S - gammaln(count_K + 1)[:, None])
    grown_SM, power_M = np.zeros((len(size_S), len(begin_M))), begin_M
    for weight_S in weight_KS:
        grown_SM += weight_S[:, None] * power_M
        power_M = step @ power_M
    return grown_SM


def _normed(weight_M: Floats) -> Floats:
    total = weight_M.sum()
    if total > 0:
        normed_M: Floats = weight_M / total
        return normed_M
    return np.append(1.0, np.zeros(len(weight_M) - 1))  # nothing is in this class, so it does not matter


def _central(raw_3S: Floats, scale: float) -> LatencyMoments:
    """Mean, variance and skewness from the raw moments, in seconds."""
    one_S, two_S, three_S = raw_3S
    variance_S = np.maximum(two_S - one_S**2, 0.0)
    nonzero_S = variance_S > 1e-9 * one_S**2  # smaller values are rounding errors
    third_S = three_S - 3 * one_S * two_S + 2 * one_S**3
    skew_S = np.where(nonzero_S, third_S, 0.0) / np.where(nonzero_S, variance_S, 1.0) ** 1.5
    return LatencyMoments(scale * one_S, scale**2 * variance_S, skew_S)


def _transitions(capacity: ServerCapacity, arrivals: BatchArrivals, seconds_M: Floats, unit: float) -> _Transitions:
    """Batch arrivals while places are free, single arrivals while the batch is full, and completions, after which the first
    request in the queue is prefilled. The last state stands for all larger m."""
    cap, others_M = capacity.cap, np.arange(len(seconds_M))
    free_M, full_M = others_M[others_M < cap - 1], others_M[others_M >= cap - 1]
    size_K = np.arange(1, len(arrivals.probability_K) + 1)
    admitted_MK = np.minimum(
        size_K, cap - 1 - free_M[:, None]
    )  # requests of the batch that find a place; the rest queue
    rate_MK = arrivals.rate * seconds_M[free_M, None] * arrivals.probability_K
    departing_M = others_M[1:]
    transitions = (
        (free_M.repeat(len(size_K)), (free_M[:, None] + size_K).ravel(), rate_MK.ravel(), admitted_MK.ravel()),
        (full_M, full_M + 1, arrivals.single_rate * seconds_M[full_M], np.zeros(len(full_M))),
        (departing_M, departing_M - 1, np.minimum(departing_M, cap - 1), departing_M >= cap),
    )
    from_E, to_E, rate_E, prefills_E = (np.concatenate(part) for part in zip(*transitions, strict=True))
    last = len(others_M) - 1
    return _Transitions(
        last + 1, from_E, np.minimum(to_E, last), rate_E.astype(float), prefills_E * capacity.prefill / unit
    )
