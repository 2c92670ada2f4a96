"""A server with continuous batching and the variability of its requests: the inputs of the queueing model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ServerCapacity:
    """Times in seconds by batch size n, entry n - 1; the last entry is the batch cap (max_num_seqs)."""

    service_N: Floats  # the steps of the mean request, to its end
    step_N: Floats  # one step
    prefill: float  # mean prefill; it blocks the batch for this long
    before_decoding: float = 0.0  # time before the first token beyond that, which delays no other request

    @property
    def cap(self) -> int:
        return len(self.service_N)

    @property
    def completion_interval(self) -> float:
        """Mean seconds between completions while the batch is full, without prefills."""
        return float(self.service_N[-1]) / self.cap

    @property
    def stability_limit(self) -> float:
        """Capacity in requests per second: at this offered load the queue grows without bound."""
        return 1.0 / (self.prefill + self.completion_interval)


@dataclass(frozen=True)
class RequestSizes:
    """Distribution of request sizes: decoding steps relative to the mean, for W equally likely requests."""

    mean_W: Floats  # mean over W is 1
    variance_W: Floats  # from random acceptance

    @property
    def squared_cv(self) -> float:
        """Squared coefficient of variation."""
        return float(self.mean_W.var() + self.variance_W.mean())
