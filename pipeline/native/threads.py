"""How OpenMP threads wait for each other. Standard library only: OpenMP reads its settings when torch is imported.

By default a thread of libgomp (the OpenMP runtime in torch's wheels) that waits at a barrier spins for milliseconds. On a quiet
machine that is fast. Where another process computes on the same cores, the spinning thread takes the time slice that the thread
it waits for needs: training of small models then takes up to fifty times as long (docs/benchmarks/decoding.md). A short spin
bridges the gap between two operators and then sleeps.
"""

import os
from collections.abc import MutableMapping

SPIN_COUNT = 5000  # iterations; 60 to 200 microseconds, by processor
_USERS_OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep soon, unless the user has said how they wait. No effect once torch is imported."""
    if not any(name in environment for name in _USERS_OWN):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
