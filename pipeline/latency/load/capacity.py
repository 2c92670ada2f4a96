"""A server that batches continuously, and how unequal what it is asked is: what the closed form knows of both."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ServerCapacity:
    """By the number n in the batch, entry n - 1; the last is the batch cap. Seconds."""

    service_N: Floats  # of a mean request's whole answer
    step_N: Floats  # of a step
    prefill: float  # by which a mean request's prompt holds everybody up

    @property
    def cap(self) -> int:
        return len(self.service_N)

    @property
    def completion_interval(self) -> float:
        """Seconds between the ends of answers while the batch is full, without prefills."""
        return float(self.service_N[-1]) / self.cap

    @property
    def stability_limit(self) -> float:
        """Requests a second from which the line grows without end."""
        return 1.0 / (self.prefill + self.completion_interval)


@dataclass(frozen=True)
class RequestSizes:
    """How unequal requests are: steps of each over the mean request's, W requests, each as likely as any other."""

    mean_W: Floats  # 1 on the average
    variance_W: Floats  # by the luck of acceptance

    @property
    def squared_cv(self) -> float:
        """Squared coefficient of variation."""
        return float(self.mean_W.var() + self.variance_W.mean())
