"""What requests ask of a server: rounds at every draft length, as an examination found them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import Convention
from pipeline.latency.profile import Profile
from pipeline.latency.queueing import Server, Sizes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """W requests, each as likely as any other. Row g of a (G + 1, W) array is of draft length g; row 0 is plain decoding."""

    prompt_tokens_W: Ints
    tokens_W: Ints
    rounds_GW: Floats  # steps of each after its prefill, expected
    variance_GW: Floats  # of them, by the luck of acceptance

    @property
    def rounds_G(self) -> Floats:
        """Of a mean request."""
        mean_G: Floats = self.rounds_GW.mean(1)
        return mean_G

    @property
    def context(self) -> float:
        """Tokens in a request's cache, on the average over its answer."""
        return float((self.prompt_tokens_W + self.tokens_W / 2).mean())

    def sizes(self, gamma: int) -> Sizes:
        """How unequal requests are at a draft length."""
        mean = self.rounds_G[gamma]
        return Sizes(self.rounds_GW[gamma] / mean, self.variance_GW[gamma] / mean**2)


def examined_workload(counts: Sequence[PromptCounts], convention: Convention, gammas: int) -> Workload:
    """The requests of an examination, each with the tokens and the acceptance it had there."""
    tokens_W = np.array([item.tokens for item in counts])
    plain_W = np.maximum(tokens_W - convention.start, 0).astype(np.float64)
    rounds_GW = np.array([[item.rounds[gamma] for item in counts] for gamma in range(gammas)])
    variance_GW = np.array([[item.rounds_variance[gamma] for item in counts] for gamma in range(gammas)])
    return Workload(
        np.array([item.prompt_tokens for item in counts]),
        tokens_W,
        np.vstack([plain_W, rounds_GW]),
        np.vstack([np.zeros_like(plain_W), variance_GW]),
    )


def server(workload: Workload, profile: Profile, lengths_N: Ints) -> Server:
    """A machine with the profile's forward times that serves the workload, at most `len(lengths_N)` requests at once, n of them
    at draft length lengths_N[n - 1]."""
    step_GN = profile.steps(len(lengths_N), round(workload.context), len(workload.rounds_G) - 1)
    chosen = (lengths_N, np.arange(len(lengths_N)))
    return Server(
        (workload.rounds_G[:, None] * step_GN)[chosen],
        step_GN[chosen],
        float(profile.prefills(workload.prompt_tokens_W).mean()),
    )
