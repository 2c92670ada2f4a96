"""Costs of a decoding step for hardware where step time is not linear in the number of tokens. Pure.

In a target pass over T = requests * (gamma + 1) tokens, tokens are nearly free while the pass is bound by memory bandwidth
and expensive once it is bound by compute. The linear model (`fit.py`) is extended by

    sum over k = 4, 16, 64, ...  of  a_k min(T - T0, k - T0) + b_k max(T - k, 0)   +   (once + each * requests)  where gamma > 0

for one or all of the k inside the measured range, from T0 tokens on: below the fewest tokens that were measured the costs go on
in a straight line, because nothing is known of a bend there. The a_k give concave parts, the b_k convex parts. With all k, each
of the gamma draft passes over `requests` tokens has such terms too. The last term is the fixed cost of speculation: verification
logic and bookkeeping of the draft. No coefficient is below 0, so these costs never fall with T.

Four more kinds of terms: T rounded up to a multiple of 16 or 64 (hardware tiles); a cost up to 8, 16, 32, ... tokens that falls
away beyond them, because an engine may change to a faster kernel there (9 tokens cost less than 8 on an RTX 3090); a cost that is
added beyond a measured number of tokens, for the change to a slower kernel (a step of GLM-5.1 takes 2.2 times as long above 16
tokens); and instead of the bends a power p below 1 of the tokens and the requests,

    a T^p + b requests^p + c gamma requests^p

because steps of servers are concave in the batch: a mixture reads more of its experts for more tokens, but ever fewer more, and
kernels get better at larger shapes. `forms.py` chooses.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.fit import Experts, linear_terms

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Terms:
    """Which terms a model has beside the linear ones."""

    breakpoints: tuple[float, ...]  # in tokens of a target pass
    draft_breakpoints: tuple[float, ...]  # in tokens of a draft pass (= requests)
    least_tokens: float = 1.0  # the fewest that were measured
    least_requests: float = 1.0
    tiles: tuple[float, ...] = ()  # tile sizes in tokens of a target pass
    drops: tuple[float, ...] = ()  # tokens beyond which a cost falls away
    rises: tuple[float, ...] = ()  # tokens beyond which a cost is added
    powers: tuple[float, ...] = ()  # exponents

    def columns(self, batch: ArrayLike, gamma: ArrayLike, experts: Experts | None) -> Floats:
        """Design matrix, (..., K)."""
        batch, gamma = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
        tokens, speculating = batch * (gamma + 1), (gamma > 0).astype(np.float64)
        terms = [*linear_terms(batch, gamma, experts), speculating, batch * speculating]
        for k in self.breakpoints:
            terms += _pieces(tokens, k, self.least_tokens)
        terms += [np.ceil(tokens / tile) * tile for tile in self.tiles]
        for k in self.draft_breakpoints:
            terms += [gamma * part for part in _pieces(batch, k, self.least_requests)]
        for p in self.powers:
            terms += [tokens**p, batch**p, gamma * batch**p]
        terms += [(tokens <= k).astype(np.float64) for k in self.drops]
        terms += [(tokens > k).astype(np.float64) for k in self.rises]
        return np.stack(terms, axis=-1)


@dataclass(frozen=True)
class Piecewise:
    """A fitted piecewise model; `values_K` are the coefficients of the columns of its terms."""

    terms: Terms
    values_K: tuple[float, ...]
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """The step time, as `LinearCosts.step_seconds`. Below the least that was measured the straight line may go below 0."""
        seconds: Floats = self.terms.columns(batch, gamma, self.experts) @ np.array(self.values_K)
        return seconds


def _pieces(tokens: Floats, knot: float, least: float) -> tuple[Floats, Floats]:
    return np.minimum(tokens, knot) - least, np.maximum(tokens - knot, 0.0)


def above_share(
    step_seconds: Callable[[Floats, Floats], Floats], batch: ArrayLike, gamma: ArrayLike, least: float
) -> Floats:
    """Step times of a model; with fewer requests than `least`, the fewest that were measured, at least their share of the time of
    those: a straight line could go below."""
    batch, gamma = (np.asarray(values, dtype=np.float64) for values in (batch, gamma))
    if (batch >= least).all():
        return step_seconds(batch, gamma)
    share = np.minimum(batch / least, 1.0)
    seconds: Floats = np.maximum(step_seconds(batch, gamma), share * step_seconds(np.maximum(batch, least), gamma))
    return seconds
