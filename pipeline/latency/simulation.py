"""A server that batches continuously, step by step: what no formula has to assume. Pure, seeded.

Requests arrive at random, each at the replica with the fewest, wait for a place in the batch and are prefilled when the next step
begins, which holds everybody up and says their first token. A step then takes what was measured for so many requests at the draft
length of the moment, and each request goes on by as many draft tokens as its own luck accepts, and one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Replica:
    """What a server takes, in seconds."""

    step_GN: Floats  # by draft length and number in the batch: [gamma, n - 1]; the last n is the batch cap
    prefill: Callable[[Ints], Floats]  # by prompt tokens
    gamma: Callable[[int], int]  # draft length, by the number in the batch


@dataclass(frozen=True)
class Traces:
    """What is asked: W requests, each as likely as any other."""

    prompt_tokens_W: Ints
    tokens_W: Ints  # of the answer
    acceptance_WT: (
        Floats  # chance that the answer's token t is accepted where it is drafted (examination); 0 past the end
    )


@dataclass(frozen=True)
class Served:
    """Requests in the order of their arrival; seconds."""

    trace_R: Ints
    arrived_R: Floats
    first_token_R: Floats
    finished_R: Floats

    def settled(self, share: float = 0.1) -> Floats:
        """Seconds from arrival to the last token, without the first and last `share` of requests, which find or leave the server
        emptier than it is."""
        left_out = int(share * len(self.trace_R))
        return (self.finished_R - self.arrived_R)[left_out : len(self.trace_R) - left_out]


def simulate(replica: Replica, traces: Traces, rate: float, requests: int, seed: int, replicas: int = 1) -> Served:
    """So many requests, `rate` a second over all replicas together."""
    random = np.random.default_rng(seed)
    served = Served(
        random.integers(len(traces.tokens_W), size=requests),
        np.cumsum(random.exponential(1 / rate, requests)),
        np.full(requests, np.nan),
        np.full(requests, np.nan),
    )
    running = [_Running(replica, traces, served, random) for _ in range(replicas)]
    ends = np.full(replicas, np.inf)  # of the steps under way

    def until(now: float) -> None:
        while ends[earliest := int(ends.argmin())] <= now and np.isfinite(ends[earliest]):
            ends[earliest] = running[earliest].end_step(float(ends[earliest]))

    for request, now in enumerate(served.arrived_R.tolist()):
        until(now)
        chosen = min(range(replicas), key=lambda one: running[one].present)
        running[chosen].waiting.append(request)
        if ends[chosen] == np.inf:
            ends[chosen] = running[chosen].begin_step(now)
    until(np.inf)
    return served


class _Running:
    """One replica: who is in the batch, how far each has come, and who waits."""

    def __init__(self, replica: Replica, traces: Traces, served: Served, random: np.random.Generator) -> None:
        self._replica, self._traces, self._served, self._random = replica, traces, served, random
        self.waiting: deque[int] = deque()
        self._request_B, self._said_B = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._gamma = 0

    @property
    def present(self) -> int:
        return len(self.waiting) + len(self._request_B)

    def begin_step(self, now: float) -> float:
        """When the step that begins now ends; infinity where nobody is there."""
        if not self.present:
            return float("inf")
        now = self._admit(now)
        count = len(self._request_B)
        if not count:  # whoever came was answered by the prefill
            return now
        self._gamma = self._replica.gamma(count)
        return now + float(self._replica.step_GN[self._gamma, count - 1])

    def _admit(self, now: float) -> float:
        """When the prefills of those for whom there is a place are done."""
        places = self._replica.step_GN.shape[1] - len(self._request_B)
        admitted = np.array([self.waiting.popleft() for _ in range(min(places, len(self.waiting)))], dtype=np.int64)
        if not len(admitted):
            return now
        trace = self._served.trace_R[admitted]
        now += float(self._replica.prefill(self._traces.prompt_tokens_W[trace]).sum())
        self._served.first_token_R[admitted] = now
        answered = self._traces.tokens_W[trace] <= 1
        self._served.finished_R[admitted[answered]] = now
        self._request_B = np.append(self._request_B, admitted[~answered])
        self._said_B = np.append(self._said_B, np.ones((~answered).sum(), dtype=np.int64))
        return now

    def end_step(self, now: float) -> float:
        """When the step after the one that ends now will end."""
        trace_B = self._served.trace_R[self._request_B]
        chance_BG = self._traces.acceptance_WT[trace_B[:, None], self._said_B[:, None] + np.arange(self._gamma)]
        accepted_BG = np.logical_and.accumulate(self._random.random(chance_BG.shape) < chance_BG, axis=1)
        self._said_B = self._said_B + 1 + accepted_BG.sum(1)
        done_B = self._said_B >= self._traces.tokens_W[trace_B]
        if done_B.any():
            self._served.finished_R[self._request_B[done_B]] = now
            self._request_B, self._said_B = self._request_B[~done_B], self._said_B[~done_B]
        return self.begin_step(now)
