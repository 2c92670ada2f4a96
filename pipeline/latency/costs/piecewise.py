"""Piecewise linear costs of a decoding step, for hardware where step time is not linear in the number of tokens. Pure.

In a target pass over T = requests * (gamma + 1) tokens, tokens are nearly free while the pass is bound by memory bandwidth
and expensive once it is bound by compute. The linear model (`fit.py`) is extended by

    sum over k = 4, 16, 64, ...  of  a_k min(T - T0, k - T0) + b_k max(T - k, 0)   +   (once + each * requests)  where gamma > 0

for one or all of the k inside the measured range, from T0 tokens on: below the fewest tokens that were measured the costs go on
in a straight line, because nothing is known of a bend there. The a_k give concave parts, the b_k convex parts. With all k, each
of the gamma draft passes over `requests` tokens has such terms too. The last term is the fixed cost of speculation: verification
logic and bookkeeping of the draft. No coefficient is below 0, so these costs never fall with T.

Three more kinds of terms are tried, and kept if they lower the left-out error: T rounded up to a multiple of 16 or 64 (hardware
tiles), a cost up to 8, 16, 32, ... tokens that falls away beyond them, because an engine may change to a faster kernel
there (9 tokens cost less than 8 on an RTX 3090), and a cost that is added beyond a measured number of tokens, for the change to a
slower kernel: a step of GLM-5.1 takes 2.2 times as long above 16 tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.fit import Experts, columns, least_squares

Floats = NDArray[np.float64]

_SPACING = 4.0  # ratio of two breakpoints: wider misses real effects, narrower fits noise
_TILES = (16.0, 64.0)  # tokens per tile: CPUs and GPUs
_DROPS = tuple(2.0**power for power in range(3, 9))  # tokens beyond which another kernel may be used
_MIN_BESIDE = 3  # points on each side of a drop
_RIDGE = 1e-3  # ridge penalty: spreads a cost over terms that are nearly collinear
_LEAVE_ONE_OUT, _FOLDS = 60, 20  # points up to which each is left out alone; groups for more
_CLEARER = 0.5  # standard errors by which the left-out error must fall for more terms
_LEAST_RISE = 0.25  # of the steps below it: less may be noise
_CLEARER_RISE = 1.5  # the same for a rise, whose place is looked for


@dataclass(frozen=True)
class Terms:
    """Which terms a piecewise model has."""

    breakpoints: tuple[float, ...]  # in tokens of a target pass
    draft_breakpoints: tuple[float, ...]  # in tokens of a draft pass (= requests)
    least_tokens: float = 1.0  # the fewest that were measured
    least_requests: float = 1.0
    tiles: tuple[float, ...] = ()  # tile sizes in tokens of a target pass
    drops: tuple[float, ...] = ()  # tokens beyond which a cost falls away
    rises: tuple[float, ...] = ()  # tokens beyond which a cost is added

    def columns(self, batch: ArrayLike, gamma: ArrayLike, experts: Experts | None) -> Floats:
        """Design matrix, (..., K)."""
        batch, gamma = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
        tokens, speculating = batch * (gamma + 1), (gamma > 0).astype(np.float64)
        terms = [speculating, batch * speculating]
        for k in self.breakpoints:
            terms += _pieces(tokens, k, self.least_tokens)
        terms += [np.ceil(tokens / tile) * tile for tile in self.tiles]
        for k in self.draft_breakpoints:
            terms += [gamma * part for part in _pieces(batch, k, self.least_requests)]
        terms += [(tokens <= k).astype(np.float64) for k in self.drops]
        terms += [(tokens > k).astype(np.float64) for k in self.rises]
        return np.concatenate([columns(batch, gamma, experts), np.stack(terms, axis=-1)], axis=-1)


@dataclass(frozen=True)
class Piecewise:
    """A fitted piecewise model; `values_K` are the coefficients of the columns of its terms."""

    terms: Terms
    values_K: tuple[float, ...]
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """As `LinearCosts.step_seconds`. Below the least that was measured the straight line may go below 0."""
        seconds: Floats = self.terms.columns(batch, gamma, self.experts) @ np.array(self.values_K)
        return seconds


@dataclass(frozen=True)
class Choice:
    """The chosen model (None: linear), and what it and the linear one predict for each point from the others."""

    piecewise: Piecewise | None
    linear_R: Floats
    chosen_R: Floats


def choose_model(batch_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None) -> Choice:
    """Of R measured steps at distinct points: linear, with one breakpoint, with all, with tiles, with drops.

    Steps of a few tokens are bound by memory bandwidth, so a bend near the fewest tokens is expected, although a sweep has few
    points there: of one breakpoint or none, the lowest is taken whose left-out error is within a standard error of the least. A
    model with more terms must lower the left-out error by more than half a standard error, one with
    a rise by more than one and a half."""

    def lower(one_R: Floats, other_R: Floats) -> tuple[float, float]:
        """Mean by which the first left-out error is lower, and its standard error."""
        gain_R = np.abs(other_R / seconds_R - 1) - np.abs(one_R / seconds_R - 1)
        return float(gain_R.mean()), float(gain_R.std() / len(gain_R) ** 0.5)

    linear_R = _left_out(columns(batch_R, gamma_R, experts), seconds_R, 0.0)
    single, larger = (
        [(one, _left_out(one.columns(batch_R, gamma_R, experts), seconds_R, _RIDGE)) for one in group]
        for group in _candidates(batch_R, gamma_R)
    )
    bent: list[tuple[Terms | None, Floats]] = [*single, (None, linear_R)]
    least_R = min((one_R for _, one_R in bent), key=lambda one_R: float(np.abs(one_R / seconds_R - 1).mean()))
    best, best_R = next(one for one in bent if (worse := lower(least_R, one[1]))[0] <= worse[1])
    if rise := _rise(batch_R, gamma_R, seconds_R, experts, [*(one for one, _ in single), larger[0][0]]):
        larger.append((rise, _left_out(rise.columns(batch_R, gamma_R, experts), seconds_R, _RIDGE)))
    for terms, found_R in larger:
        gain, error = lower(found_R, best_R)
        if gain > max((_CLEARER_RISE if terms.rises else _CLEARER) * error, 1e-9):
            best, best_R = terms, found_R
    if best is None:
        return Choice(None, linear_R, linear_R)
    values_K = least_squares(best.columns(batch_R, gamma_R, experts), seconds_R, _RIDGE)
    return Choice(Piecewise(best, tuple(values_K.tolist()), experts), linear_R, best_R)


def _candidates(batch_R: Floats, gamma_R: Floats) -> tuple[list[Terms], list[Terms]]:
    """Those with one breakpoint, from the lowest on, and those with all of them. Small and noisy sweeps are predicted better
    with one: all together have a dozen terms."""
    tokens_R = batch_R * (gamma_R + 1)
    every = Terms(_powers(tokens_R), _powers(batch_R), float(tokens_R.min()), float(batch_R.min()))
    drops = tuple(k for k in _DROPS if min((tokens_R <= k).sum(), (tokens_R > k).sum()) >= _MIN_BESIDE)
    return (
        [replace(every, breakpoints=(one,), draft_breakpoints=()) for one in every.breakpoints],
        [every, replace(every, tiles=_TILES), *([replace(every, drops=drops)] if drops else [])],
    )


def _rise(
    batch_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None, bases: Sequence[Terms]
) -> Terms | None:
    """Of one rise beyond a measured number of tokens, with other terms or none, that with the least error on the points
    themselves; the left-out error then decides whether there is one. None if no number has enough points beside it."""
    tokens_R = batch_R * (gamma_R + 1)
    none = Terms((), (), float(tokens_R.min()), float(batch_R.min()))
    tried = [
        replace(base, rises=(float(k),))
        for base in (none, *bases)
        for k in np.unique(tokens_R)
        if min((tokens_R <= k).sum(), (tokens_R > k).sum()) >= _MIN_BESIDE
    ]

    def error(terms: Terms) -> float:
        columns_RK = terms.columns(batch_R, gamma_R, experts)
        values_K = least_squares(columns_RK, seconds_R, _RIDGE)
        fitted_R, free = columns_RK @ values_K, max(1, len(seconds_R) - columns_RK.shape[1])
        if values_K[-1] < _LEAST_RISE * float(np.median(fitted_R[tokens_R <= terms.rises[0]])):
            return np.inf
        return float(
            np.abs(fitted_R / seconds_R - 1).mean() * len(seconds_R) / free
        )  # more terms fit better by themselves

    best = min(tried, key=error, default=None)
    return best if best and np.isfinite(error(best)) else None


def left_out(columns_RK: Floats, seconds_R: Floats, ridge: float, point_R: NDArray[np.int64]) -> Floats:
    """Predictions for each row by a fit to those of other points; for many points, to those of other groups of points."""
    count = int(point_R.max()) + 1
    group_P = np.arange(count) if count <= _LEAVE_ONE_OUT else np.random.default_rng(0).permutation(count) % _FOLDS
    group_R, found_R = group_P[point_R], np.empty(len(seconds_R))
    for group in range(int(group_P.max()) + 1):
        left = group_R == group
        found_R[left] = columns_RK[left] @ least_squares(columns_RK[~left], seconds_R[~left], ridge)
    return found_R


def _left_out(columns_RK: Floats, seconds_R: Floats, ridge: float) -> Floats:
    """Where each row is a point."""
    return left_out(columns_RK, seconds_R, ridge, np.arange(len(seconds_R)))


def _powers(values_R: Floats) -> tuple[float, ...]:
    """Breakpoints inside the measured range: beyond it nothing tells what is on the other side."""
    return tuple(_SPACING**power for power in range(1, 32) if values_R.min() < _SPACING**power < values_R.max())


def _pieces(tokens: Floats, knot: float, least: float) -> tuple[Floats, Floats]:
    return np.minimum(tokens, knot) - least, np.maximum(tokens - knot, 0.0)
