"""How long a request stays in the batch, by its size, among others who come and go. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import bmat, csr_array, diags_array, eye_array
from scipy.sparse.linalg import expm_multiply, spsolve

from pipeline.latency.load.batch_arrivals import BatchArrivals
from pipeline.latency.load.capacity import Floats, RequestSizes, ServerCapacity

_SIZES = 12  # whose moments are computed; between them they are interpolated
_TAIL = 1e-9


@dataclass(frozen=True)
class RequestLatency:
    """Seconds of a request's steps with the prefills among them, by its size over the mean one's; the first size is 0."""

    mean: float  # over all requests
    size_S: Floats
    mean_S: Floats
    variance_S: Floats
    skew_S: Floats


@dataclass(frozen=True)
class _Transitions:
    """What may happen to the m others there, in the time of one step of a mean request over its steps."""

    states: int
    from_E: NDArray[np.int64]
    to_E: NDArray[np.int64]
    rate_E: Floats
    prefill_E: Floats  # units of time that the prefills which come with it take

    def raised(self, power: int) -> csr_array:
        """By from and to: how often, times the power of that time."""
        return csr_array((self.rate_E * self.prefill_E**power, (self.from_E, self.to_E)), (self.states, self.states))


def request_latency(
    capacity: ServerCapacity, sizes: RequestSizes, arrivals: BatchArrivals, found_M: Floats
) -> RequestLatency:
    """The first three moments v_i of a stay, as functions of its size u and of the m others there (`meets_M`: chance to begin
    among m):

        d v_i / du = G v_i + i s v_(i-1) + what a prefill adds at once to those moments

    G lets others come, s(m + 1) seconds for one unit of u (a mean request), and, with sizes forgotten, each of the batch go at
    rate 1. Past what is met at all, or a line three batches long, m counts no further.

    Forgotten sizes are as if exponential, and over such the mean is right (Little): it stands, and the moments follow it.
    """
    cap = capacity.cap
    states = min(int(np.flatnonzero(found_M > _TAIL * found_M.max())[-1]) + 2 + cap // 4, 4 * cap + 64)
    found_M = np.pad(found_M, (0, max(0, states - len(found_M))))
    start_M = np.append(found_M[: states - 1], found_M[states - 1 :].sum())
    seconds_M = capacity.service_N[np.minimum(np.arange(states), cap - 1)]
    unit = 100 * float(seconds_M.max())  # that keeps the higher moments small, and with them the work
    transitions = _transitions(capacity, arrivals, seconds_M, unit)
    raised = [transitions.raised(power) for power in range(4)]
    generator = raised[0] - diags_array(raised[0].sum(1))
    first, second, third = (matrix.sum(1)[:, None] for matrix in raised[1:])
    elapsed = diags_array(seconds_M / unit)
    system = bmat(  # of v_1, v_2, v_3 and the constant 1
        [
            [generator, None, None, csr_array(seconds_M[:, None] / unit + first)],
            [2 * (elapsed + raised[1]), generator, None, csr_array(second)],
            [3 * raised[2], 3 * (elapsed + raised[1]), generator, csr_array(third)],
            [None, None, None, csr_array((1, 1))],
        ],
        format="csr",
    )
    size_S = np.linspace(0.0, max(float(sizes.mean_W.max()), 1.0), _SIZES + 1)
    begin = np.append(np.zeros(3 * states), 1.0)
    moments_S = expm_multiply(system, begin, start=0.0, stop=float(size_S[-1]), num=_SIZES + 1)[:, :-1]
    one_S, two_S, three_S = moments_S.reshape(-1, 3, states).transpose(1, 0, 2) @ start_M
    mean = float(start_M @ spsolve((eye_array(states) - generator).tocsc(), seconds_M / unit + first[:, 0]))
    variance_S = np.maximum(two_S - one_S**2, 0.0)
    nonzero_S = variance_S > 1e-9 * one_S**2  # less is rounding
    third_S = three_S - 3 * one_S * two_S + 2 * one_S**3
    skew_S = np.where(nonzero_S, third_S, 0.0) / np.where(nonzero_S, variance_S, 1.0) ** 1.5
    scale = mean / float(np.interp(sizes.mean_W, size_S, one_S).mean())
    return RequestLatency(unit * mean, size_S, unit * scale * one_S, (unit * scale) ** 2 * variance_S, skew_S)


def _transitions(capacity: ServerCapacity, arrivals: BatchArrivals, seconds_M: Floats, unit: float) -> _Transitions:
    """Batches of arrivals while there is room, one at a time while the batch is full; and the end of another request, after which
    the first in the queue is prefilled. The last state holds all beyond."""
    cap, others_M = capacity.cap, np.arange(len(seconds_M))
    free_M, full_M = others_M[others_M < cap - 1], others_M[others_M >= cap - 1]
    size_K = np.arange(1, len(arrivals.probability_K) + 1)
    admitted_MK = np.minimum(size_K, cap - 1 - free_M[:, None])  # of a cluster; the rest wait
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
