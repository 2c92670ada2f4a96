"""Discrete-event simulation of servers with continuous batching. Pure, seeded.

Arrivals are Poisson. Each request goes to the replica with the fewest requests, waits for a place in the batch, and is
prefilled when the next step begins; prefills block the batch and emit the first token, or are part of that step, which emits
it. A step takes the measured time for the batch size and draft length, and advances each request by its accepted draft tokens
and one more.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, isfinite

import numpy as np
from numpy.typing import NDArray

COUNTED = 0.8  # of the requests: the first tenth warms up, the last tenth drains

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SimulatedReplica:
    """Times of one replica, in seconds."""

    step_GN: Floats  # step time by draft length and batch size: [gamma, n - 1]; the last n is the batch cap
    prefill: Callable[[Ints], Floats]  # by prompt length
    gamma: Callable[[int], int]  # draft length by batch size
    first_steps: int = 0  # 1: the first token comes at the end of the first step in the batch


@dataclass(frozen=True)
class Traces:
    """The workload: W equally likely requests."""

    prompt_tokens_W: Ints
    tokens_W: Ints  # output length
    acceptance_WT: Floats  # acceptance probability of output token t; 0 past the end


@dataclass(frozen=True)
class SimulatedRequests:
    """Requests in order of arrival; times in seconds."""

    trace_R: Ints
    arrived_R: Floats
    first_token_R: Floats
    finished_R: Floats

    def steady_state(self) -> Floats:
        """Request latencies without the first tenth (warm-up) and the last tenth (drain) of requests."""
        trimmed = len(self.trace_R) // 10
        return (self.finished_R - self.arrived_R)[trimmed : len(self.trace_R) - trimmed]


def simulate(
    replica: SimulatedReplica, traces: Traces, rate: float, requests: int, seed: int, replicas: int = 1
) -> SimulatedRequests:
    """Simulate `requests` requests, arriving at `rate` per second over all replicas."""
    random = np.random.default_rng(seed)
    served = SimulatedRequests(
        random.integers(len(traces.tokens_W), size=requests),
        np.cumsum(random.exponential(1 / rate, requests)),
        np.full(requests, np.nan),
        np.full(requests, np.nan),
    )
    prefill_W = replica.prefill(traces.prompt_tokens_W)
    states = [_ReplicaState(replica, prefill_W, traces, served, random) for _ in range(replicas)]

    def run_until(now: float) -> None:
        while (next_state := min(states, key=lambda state: state.end)).end <= now and isfinite(next_state.end):
            next_state.advance()

    for request, now in enumerate(served.arrived_R.tolist()):
        run_until(now)
        min(states, key=lambda state: state.present).arrive(request, now)
    run_until(inf)
    return served


@dataclass(slots=True)
class _ActiveRequest:
    """A request in the batch. Acceptance is drawn once at the start and is the same for every draft length."""

    request: int
    accepted_T: list[int]  # draft tokens accepted in a row, from each output position
    emitted_S: list[int]  # tokens emitted after each coming step; a blocking prefill has emitted one
    steps_left: int = 0  # until the last token

    def set_gamma(self, gamma: int) -> None:
        """Recompute the coming steps for another draft length."""
        emitted = self.emitted_S[-1 - self.steps_left]
        self.emitted_S = [emitted]
        while emitted < len(self.accepted_T):
            accepted = self.accepted_T[emitted] if emitted else 0  # the first token comes without draft tokens
            emitted += 1 + (accepted if accepted < gamma else gamma)
            self.emitted_S.append(emitted)
        self.steps_left = len(self.emitted_S) - 1


class _ReplicaState:
    """One replica: its batch and its queue. Steps between two changes of the batch take the same time, so they are simulated as
    one stretch."""

    def __init__(
        self,
        replica: SimulatedReplica,
        prefill_W: Floats,
        traces: Traces,
        served: SimulatedRequests,
        random: np.random.Generator,
    ) -> None:
        self._replica, self._prefill_W, self._traces, self._served = replica, prefill_W, traces, served
        self._random, self._cap = random, replica.step_GN.shape[1]
        self._waiting: deque[int] = deque()
        self._batch: list[_ActiveRequest] = []
        self._gamma = -1
        self._start, self._step, self._steps = 0.0, 0.0, 0  # of the stretch: start, seconds per step, number of steps
        self.end = inf  # of the stretch; infinite if idle

    @property
    def present(self) -> int:
        return len(self._waiting) + len(self._batch)

    def arrive(self, request: int, now: float) -> None:
        """A request that finds a free place starts after the running step."""
        self._waiting.append(request)
        if self.end == inf:
            self._start_stretch(now)
        elif 0 < len(self._batch) < self._cap:
            self._steps = min(self._steps, max(1, ceil((now - self._start) / self._step)))
            self.end = self._start + self._steps * self._step

    def advance(self) -> None:
        """End the current stretch and start the next one."""
        for active in self._batch:
            active.steps_left -= self._steps
            if not active.steps_left:
                self._served.finished_R[active.request] = self.end
        self._batch = [active for active in self._batch if active.steps_left]
        self._start_stretch(self.end)

    def _start_stretch(self, now: float) -> None:
        new = [self._waiting.popleft() for _ in range(min(self._cap - len(self._batch), len(self._waiting)))]
        before = len(self._batch)
        now = self._admit(new, now) if new else now
        self._start, self._steps = now, 0
        count = len(self._batch)
        if count:
            gamma = self._replica.gamma(count)
            for active in self._batch if gamma != self._gamma else self._batch[before:]:
                active.set_gamma(gamma)
            self._gamma, self._step = gamma, float(self._replica.step_GN[gamma, count - 1])
            if self._replica.first_steps:
                self._served.first_token_R[[active.request for active in self._batch[before:]]] = now + self._step
            room = self._waiting and count < self._cap  # requests of one token have left places free
            self._steps = 1 if room else min(active.steps_left for active in self._batch)
        self.end = now + self._steps * self._step if new or self._batch else inf

    def _admit(self, new: list[int], now: float) -> float:
        """Prefill new requests; returns the time when this ends."""
        trace_B = self._served.trace_R[new]
        now += float(self._prefill_W[trace_B].sum())
        self._served.first_token_R[new] = now
        for request, trace in zip(new, trace_B, strict=True):
            tokens, emitted = int(self._traces.tokens_W[trace]), 1 - self._replica.first_steps
            if tokens <= emitted:
                self._served.finished_R[request] = now
            else:
                self._batch.append(_ActiveRequest(request, self._draw_accepted(trace, tokens), [emitted]))
        return now

    def _draw_accepted(self, trace: int, tokens: int) -> list[int]:
        """Number of draft tokens accepted in a row, from each output position."""
        here_T = np.arange(tokens)
        rejected_T = self._random.random(tokens) >= self._traces.acceptance_WT[trace, :tokens]
        next_T = np.minimum.accumulate(np.where(rejected_T, here_T, tokens)[::-1])[::-1]
        accepted_T: list[int] = (next_T - here_T).tolist()
        return accepted_T
