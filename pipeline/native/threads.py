"""OpenMP threads where other processes compute on the same cores: how they wait for each other, and how many a short pass of
compiled code uses. Standard library only: OpenMP reads its settings when torch is imported.

By default a thread of libgomp (the OpenMP runtime in torch's wheels) that waits at a barrier spins for milliseconds. On a quiet
machine that is fast. Where another process computes on the same cores, the spinning thread takes the time slice that the thread
it waits for needs: training of small models then takes up to fifty times as long (docs/benchmarks/decoding.md). A short spin
bridges the gap between two operators and then sleeps.

How many: one, or all. On a quiet machine all threads are faster. Beside another process that computes on the same cores, one of
the threads loses its core for a time slice while the others wait for it at the next barrier: a pass of 0.15 ms then takes 1.6 ms,
with one thread 0.24 ms. Which is faster is therefore measured on the passes themselves, whose results do not depend on it.
"""

import os
from collections import deque
from collections.abc import Collection, MutableMapping

SPIN_COUNT = 5000  # iterations; 60 to 200 microseconds, by processor
_USERS_OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
WINDOW = 8  # passes whose mean counts
FIRST_TRIAL = 32  # passes before one thread is tried: short decodes do not pay for it
TRIAL = 3  # passes of a trial
DEGRADED = 1.5  # a mean above this multiple of the best one is a reason for a trial
LONGEST_WAIT = 1024  # passes between two trials


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep soon, unless the user has set how they wait. No effect once torch is imported."""
    if not any(name in environment for name in _USERS_OWN):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


class ThreadChoice:
    """The number of threads for passes of one size. Ask `threads` before each pass, and `record` its seconds after it.

    While all threads are used, one is tried once, and again when passes have become slower. While one is used, all are tried
    again and again. A trial that changes nothing doubles the number of passes until the next.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses_all = True
        self._recent: deque[float] = deque(maxlen=WINDOW)  # seconds of the chosen number of threads
        self._trial: list[float] = []  # seconds of the other number; a trial runs while it is due
        self._best = float("inf")  # the lowest mean with all threads
        self._passes, self._wait = 0, FIRST_TRIAL  # since the last trial; until the next
        self._tried = False

    def threads(self) -> int:
        """For the next pass."""
        return self._most if self._uses_all != self._trial_is_due() else 1

    def record(self, seconds: float) -> None:
        """The seconds of the pass that used `threads()`."""
        if not self._trial_is_due():
            self._passes += 1
            self._recent.append(seconds)
            if self._uses_all and len(self._recent) == WINDOW:
                self._best = min(self._best, _mean(self._recent))
            return
        self._trial.append(seconds)
        if len(self._trial) == TRIAL:
            self._decide(_mean(self._trial), _mean(self._recent))

    def _trial_is_due(self) -> bool:
        if len(self._recent) < WINDOW or self._passes < self._wait:
            return False
        return not self._tried or not self._uses_all or _mean(self._recent) > DEGRADED * self._best

    def _decide(self, other: float, own: float) -> None:
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        if other < own:
            self._uses_all, self._wait = not self._uses_all, FIRST_TRIAL
            self._recent.clear()
        elif self._uses_all:
            self._best = own  # slower than before for another reason, such as a longer context
        self._trial, self._passes, self._tried = [], 0, True


def _mean(seconds: Collection[float]) -> float:
    return sum(seconds) / len(seconds)  # without `statistics`, which every command would import
