"""Which form the costs of a server have, and how far off it is inside and at the edge of what was measured. Pure.

A form predicts measured points that are left out one by one, and loads that are left out one by one. Half of its error is that of
points, half that of loads; the lightest and the heaviest load count as much as all loads together, because a capacity and a
schedule ask for what is beyond them. Forms with bends and tiles are chosen first, by left-out points. Another one of them, or one
with a power, takes its place only if it is better by more than a tenth, so that noise does not choose.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.accuracy import EdgeError
from pipeline.latency.costs.fit import Experts, columns, is_one_load, least_squares
from pipeline.latency.costs.piecewise import Piecewise, Terms, above_share
from pipeline.latency.costs.repeats import point_numbers

Floats = NDArray[np.float64]

_SPACING = 4.0  # ratio of two breakpoints: wider misses real effects, narrower fits noise
_TILES = (16.0, 64.0)  # tokens per tile: CPUs and GPUs
_DROPS = tuple(2.0**power for power in range(3, 9))  # tokens beyond which another kernel may be used
_MIN_BESIDE = 3  # points on each side of a drop
_RIDGE = 1e-3  # ridge penalty: spreads a cost over terms that are nearly collinear
_LEAVE_ONE_OUT, _FOLDS = 60, 20  # points up to which each is left out alone; groups for more
_LOADS = 12  # the same for loads
_CLEARER = 0.5  # standard errors by which the left-out error must fall for more terms
_LEAST_RISE = 0.25  # of the steps below it: less may be noise
_CLEARER_RISE = 1.5  # the same for a rise, whose place is looked for
_POWERS = (0.35, 0.5, 0.65, 0.8)  # exponents that are tried
_BETTER = 0.9  # error / that of the form with bends, below which another one takes its place
_USUAL_EDGE = 0.06  # error one load beyond what was measured: the median of 16 public sweeps
_BEYOND_INSIDE = 1.5  # the same / the left-out error of points, there

MIN_POINTS = 6  # distinct (requests, gamma) points below which only the linear model is used


@dataclass(frozen=True)
class Choice:
    """The chosen model (None: linear), and what it predicts for each point from the others."""

    piecewise: Piecewise | None
    chosen_R: Floats


@dataclass(frozen=True)
class _Steps:
    """Measured steps at distinct points."""

    batch_R: Floats
    gamma_R: Floats
    seconds_R: Floats
    experts: Experts | None

    def __getitem__(self, some_R: NDArray[np.bool_]) -> "_Steps":
        return _Steps(self.batch_R[some_R], self.gamma_R[some_R], self.seconds_R[some_R], self.experts)

    @property
    def tokens_R(self) -> Floats:
        return self.batch_R * (self.gamma_R + 1)

    @property
    def load_R(self) -> NDArray[np.int64]:
        """The number of each point's load, from the lightest on."""
        return point_numbers(self.batch_R, np.zeros(len(self.batch_R)))

    @property
    def plain_terms(self) -> Terms:
        return Terms((), (), float(self.tokens_R.min()), float(self.batch_R.min()))

    def columns(self, terms: Terms | None) -> Floats:
        """Design matrix of a form (None: linear)."""
        if terms is None:
            return columns(self.batch_R, self.gamma_R, self.experts)
        return terms.columns(self.batch_R, self.gamma_R, self.experts)

    def fitted(self, terms: Terms) -> Piecewise:
        """The form with its coefficients."""
        return Piecewise(
            terms, tuple(least_squares(self.columns(terms), self.seconds_R, _RIDGE).tolist()), self.experts
        )

    def predicted(self, terms: Terms | None, asked: "_Steps") -> Floats:
        """Seconds of other steps by a form that is fitted to these. Terms begin at the least that these have."""
        if terms is not None:
            least = self.plain_terms
            terms = replace(terms, least_tokens=least.least_tokens, least_requests=least.least_requests)
        values_K = least_squares(self.columns(terms), self.seconds_R, _ridge(terms))
        lightest = max(self.batch_R[self.gamma_R == gamma].min() for gamma in set(self.gamma_R.tolist()))
        return above_share(
            lambda batch, gamma: _Steps(batch, gamma, gamma, self.experts).columns(terms) @ values_K,
            asked.batch_R,
            asked.gamma_R,
            lightest,
        )

    def left_out(self, terms: Terms | None) -> Floats:
        """Each point by a fit to the others."""
        return left_out(self.columns(terms), self.seconds_R, _ridge(terms), np.arange(len(self.seconds_R)))

    def left_out_loads(self, terms: Terms | None) -> Iterator[float]:
        """The error of each load by a fit to the others, from the lightest on. Of many loads those between the outermost ones are
        left out in groups."""
        load_R = self.load_R
        last = min(int(load_R.max()), _LOADS)
        group_R = np.where(load_R == load_R.max(), last, np.where(load_R == 0, 0, 1 + (load_R - 1) % max(last - 1, 1)))
        for group in range(last + 1):
            left = self[group_R == group]
            yield left.error(self[group_R != group].predicted(terms, left))

    def error(self, found_R: Floats) -> float:
        """Mean absolute relative error."""
        return float(np.abs(found_R / self.seconds_R - 1).mean())


def choose_form(batch_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None) -> Choice:
    """The form of R measured steps at distinct points, of at least two loads."""
    steps = _Steps(batch_R, gamma_R, seconds_R, experts)
    left_out = cache(steps.left_out)
    bent, others = _forms(steps, left_out)
    best = bent
    if steps.load_R.max() > 1:
        errors = {terms: _error(steps, terms, left_out(terms)) for terms in (bent, *others)}
        best = min(errors, key=lambda terms: errors[terms])
        best = best if errors[best] < _BETTER * errors[bent] else bent
    return Choice(None if best is None else steps.fitted(best), left_out(best))


def edge_error(
    batch_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None, inside: float
) -> EdgeError | None:
    """How far off these costs are beyond the lightest and the heaviest load. Each is left out and predicted by the form that the
    others choose; `inside` is the left-out error of points. One load is too few for an error: of 16 public sweeps that of the
    outermost known load was within a factor of 2 of the error of the next one at 44% of the ends, and its geometric mean with 1.5
    times `inside` and the usual error at 75%. None if the other loads are one."""
    steps = _Steps(batch_R, gamma_R, seconds_R, experts)
    load_R, errors = steps.load_R, []
    for load in (0, load_R.max()):
        known, left = steps[load_R != load], steps[load_R == load]
        if not len(known.batch_R) or is_one_load(known.batch_R, known.gamma_R):
            return None
        few = len(known.batch_R) < MIN_POINTS
        form = None if few else choose_form(known.batch_R, known.gamma_R, known.seconds_R, experts).piecewise
        error = left.error(known.predicted(form.terms if form else None, left))
        errors.append(float(np.cbrt(error * _BEYOND_INSIDE * inside * _USUAL_EDGE)))
    return EdgeError(*errors)


def _error(steps: _Steps, terms: Terms | None, left_out_R: Floats) -> float:
    loads = list(steps.left_out_loads(terms))
    at_loads = (np.mean(loads) + np.mean([loads[0], loads[-1]])) / 2
    return float(steps.error(left_out_R) + at_loads) / 2


def _forms(steps: _Steps, left_out: Callable[[Terms | None], Floats]) -> tuple[Terms | None, list[Terms | None]]:
    """The form with bends and tiles that left-out points choose, and all that may take its place.

    Steps of a few tokens are bound by memory bandwidth, so a bend near the fewest tokens is expected, although a sweep has few
    points there: of one breakpoint or none, the lowest is taken whose left-out error is within a standard error of the least. A
    form with more terms must lower the left-out error by more than half a standard error, one with a rise by more than one and
    a half."""

    def lower(one_R: Floats, other_R: Floats) -> tuple[float, float]:
        """Mean by which the first left-out error is lower, and its standard error."""
        gain_R = np.abs(other_R / steps.seconds_R - 1) - np.abs(one_R / steps.seconds_R - 1)
        return float(gain_R.mean()), float(gain_R.std() / len(gain_R) ** 0.5)

    single, larger = _bends(steps)
    larger += _rise(steps, [steps.plain_terms, *single, larger[0]])
    bent = [(terms, left_out(terms)) for terms in (*single, None)]
    least_R = min((one_R for _, one_R in bent), key=steps.error)
    best, best_R = next(form for form in bent if (worse := lower(least_R, form[1]))[0] <= worse[1])
    for terms in larger:
        gain, error = lower(found_R := left_out(terms), best_R)
        if gain > max((_CLEARER_RISE if terms.rises else _CLEARER) * error, 1e-9):
            best, best_R = terms, found_R
    powers = [replace(steps.plain_terms, powers=(power,)) for power in _POWERS]
    return best, [None, *single, *larger, *powers, *_rise(steps, powers)]


def _bends(steps: _Steps) -> tuple[list[Terms], list[Terms]]:
    """The forms with one breakpoint, from the lowest on, and those with all of them. Small and noisy sweeps are predicted better
    with one: all together have a dozen terms."""
    tokens_R = steps.tokens_R
    every = replace(
        steps.plain_terms, breakpoints=_breakpoints(tokens_R), draft_breakpoints=_breakpoints(steps.batch_R)
    )
    drops = tuple(k for k in _DROPS if _enough_beside(tokens_R, k))
    return (
        [replace(every, breakpoints=(breakpoint,), draft_breakpoints=()) for breakpoint in every.breakpoints],
        [every, replace(every, tiles=_TILES), *([replace(every, drops=drops)] if drops else [])],
    )


def _rise(steps: _Steps, bases: Sequence[Terms]) -> list[Terms]:
    """The terms of a base with one rise beyond a measured number of tokens: that with the least error on the points
    themselves. Empty if no number has enough points beside it, or no rise is large enough."""
    tokens_R = steps.tokens_R
    tried = [
        replace(base, rises=(float(k),)) for base in bases for k in np.unique(tokens_R) if _enough_beside(tokens_R, k)
    ]

    def error(terms: Terms) -> float:
        columns_RK = steps.columns(terms)
        values_K = least_squares(columns_RK, steps.seconds_R, _RIDGE)
        fitted_R, free = columns_RK @ values_K, max(1, len(tokens_R) - columns_RK.shape[1])
        if values_K[-1] < _LEAST_RISE * float(np.median(fitted_R[tokens_R <= terms.rises[0]])):
            return np.inf
        return steps.error(fitted_R) * float(len(tokens_R) / free)  # more terms fit better by themselves

    errors = {terms: error(terms) for terms in tried}
    best = min(errors, key=lambda terms: errors[terms], default=None)
    return [best] if best and np.isfinite(errors[best]) else []


def left_out(columns_RK: Floats, seconds_R: Floats, ridge: float, point_R: NDArray[np.int64]) -> Floats:
    """Predictions for each row by a fit to those of other points; for many points, to those of other groups of points."""
    count = int(point_R.max()) + 1
    group_P = np.arange(count) if count <= _LEAVE_ONE_OUT else np.random.default_rng(0).permutation(count) % _FOLDS
    group_R = group_P[point_R]
    keep_LR = np.arange(int(group_P.max()) + 1)[:, None] != group_R  # L groups
    values_LK = _fits(columns_RK, seconds_R, ridge, keep_LR)
    found_R: Floats = np.einsum("rk,rk->r", columns_RK, values_LK[group_R])
    return found_R


def _fits(columns_RK: Floats, seconds_R: Floats, ridge: float, keep_LR: NDArray[np.bool_]) -> Floats:
    """A fit to each L of the rows, (L, K). With a ridge the solution is unique, and mostly the coefficients above 0 are those of
    the fit to all rows. Normal equations of these are solved together, and kept where the Karush-Kuhn-Tucker conditions hold."""
    values_LK, solved_L = np.zeros((len(keep_LR), columns_RK.shape[1])), np.zeros(len(keep_LR), dtype=np.bool_)
    if ridge:
        above_K = least_squares(columns_RK, seconds_R, ridge) > 0
        relative_RK = columns_RK / seconds_R[:, None]
        keep = keep_LR.astype(np.float64)
        target_LK = keep @ relative_RK
        gram_LKK = np.einsum("ri,rj->rij", relative_RK, relative_RK)
        gram_LKK = np.tensordot(keep, gram_LKK, 1)
        diagonal_LK = np.einsum("lkk->lk", gram_LKK)
        diagonal_LK *= 1 + ridge
        diagonal_LK[diagonal_LK == 0] = 1.0  # a term of left-out rows only
        above_LMM = gram_LKK[:, above_K][:, :, above_K]
        values_LK[:, above_K] = np.linalg.solve(above_LMM, target_LK[:, above_K, None])[..., 0]
        slope_LK = target_LK - np.einsum("lij,lj->li", gram_LKK, values_LK)
        solved_L = (values_LK[:, above_K] > 0).all(1) & (slope_LK[:, ~above_K] <= 0).all(1)
    for left in np.flatnonzero(~solved_L):
        values_LK[left] = least_squares(columns_RK[keep_LR[left]], seconds_R[keep_LR[left]], ridge)
    return values_LK


def _ridge(terms: Terms | None) -> float:
    return 0.0 if terms is None else _RIDGE


def _enough_beside(tokens_R: Floats, k: float) -> bool:
    return bool(min((tokens_R <= k).sum(), (tokens_R > k).sum()) >= _MIN_BESIDE)


def _breakpoints(values_R: Floats) -> tuple[float, ...]:
    """Inside the measured range: beyond it nothing shows what is on the other side."""
    return tuple(_SPACING**power for power in range(1, 32) if values_R.min() < _SPACING**power < values_R.max())
