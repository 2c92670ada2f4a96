"""A server measured under load: costs of its steps, and what a line leaves over. Pure.

Costs are a line (`pipeline/latency/fit.py`), and machines are not: a CPU's products jump where its tiles are full, a GPU's where
its graphs end. So what each measurement is over the line is laid between them too, by radial functions over log2 of requests and
of tokens, where that predicts measurements that are left out better than the line alone does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RBFInterpolator

from pipeline.errors import UsageError
from pipeline.latency.fit import PREFILL, Coefficient, Costs, Experts, fit_costs
from pipeline.latency.measurements import Measurement

Floats = NDArray[np.float64]

KIND, SCHEMA = "fitted costs", 1
_ROUNDING = 1e-9
_COMPANY = 1.5  # requests at once from which a first token may have waited for others'
_LEAST_LEFT = 0.2  # of a step, that is not prefills
_KEYS = {"kind", "schema", "costs", "points", "prefill", "most_gamma", "most_requests", "left_out", "plain"}


@dataclass(frozen=True)
class LeftOut:
    """Mean relative error in predicting each measurement from the others."""

    line: float
    between: float


@dataclass(frozen=True)
class Fitted:
    """Answers as a profile does; what it was measured at has one context and one length of prompts."""

    costs: Costs
    points_R3: Floats  # requests, draft length, log of measured over the line; empty where the line does
    prefill: float  # seconds of a mean prompt; 0 where nothing said it
    most_gamma: int
    most_requests: int
    left_out: LeftOut
    plain: bool = True  # whether plain decoding was measured: nothing can be held against it otherwise
    draft_digest: None = None  # nobody says which draft a server had
    notes: tuple[str, ...] = ()

    @cached_property
    def _over_line(self) -> RBFInterpolator | None:
        return _between(self.points_R3) if len(self.points_R3) else None

    def step_seconds(self, requests: ArrayLike, gamma: ArrayLike) -> Floats:
        """Of a step without prefills; broadcast against each other."""
        line = self.costs.step_seconds(requests, gamma)
        if self._over_line is None:
            return line
        requests, gamma = np.broadcast_arrays(np.asarray(requests, float), np.asarray(gamma, float))
        over: Floats = self._over_line(_places(requests.ravel(), gamma.ravel())).reshape(line.shape)
        seconds: Floats = line * np.exp(over)
        return seconds

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """As `Profile.steps`; `context` is what it was when it was measured."""
        gamma_G = np.arange((self.most_gamma if gammas is None else gammas) + 1)[:, None]
        return self.step_seconds(np.arange(1, cap + 1), gamma_G)

    def prefills(self, tokens: ArrayLike) -> Floats:
        return np.full(np.shape(tokens), self.prefill)

    def reaches(self, batch: int, gamma: int, context: int) -> bool:
        return batch <= self.most_requests and gamma <= self.most_gamma

    def json(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "costs": {
                "coefficients": {
                    name: [one.value, *(bound if np.isfinite(bound) else None for bound in (one.low, one.high))]
                    for name, one in costs.coefficients.items()
                },
                "confounded": list(costs.confounded),
                "mape": costs.mape,
                "r2": costs.r2,
                "experts": [costs.experts.awake, costs.experts.all] if costs.experts else None,
            },
            "points": self.points_R3.tolist(),
            "prefill": self.prefill,
            "most_gamma": self.most_gamma,
            "most_requests": self.most_requests,
            "plain": self.plain,
            "left_out": [self.left_out.line, self.left_out.between],
        }


def fit_measurements(
    measured: Sequence[Measurement], experts: Experts | None = None, confidence: float = 0.95
) -> Fitted:
    """UnderstudyError where they are too few, of one load, or no times."""
    requests_R = np.array([one.requests for one in measured])
    gamma_R = np.array([one.gamma for one in measured])
    seconds_R = np.array([one.step for one in measured])
    prefills_R, prefill = _prefills(measured), _first_token(measured)
    if prefills_R is not None and prefill is not None:
        # Known from elsewhere: no line could tell it from a request's own share. An engine that slices prefills into its steps
        # has too little left, and its steps are taken as they are.
        without_R = seconds_R - prefill * prefills_R
        prefill = prefill if (without_R > _LEAST_LEFT * seconds_R).all() else 0.0
        seconds_R, prefills_R = seconds_R - prefill * prefills_R, None
    elif not all(one.alone for one in measured):
        prefill = None
    costs = fit_costs(requests_R, gamma_R, seconds_R, experts, prefills_R, confidence)
    line_R = costs.step_seconds(requests_R, gamma_R)
    stalled = costs.coefficients.get(PREFILL)
    if stalled is not None and prefills_R is not None:
        line_R = line_R + stalled.value * prefills_R
        prefill = 0.0 if PREFILL in costs.confounded else stalled.value
    points_R3 = _merged(np.column_stack([requests_R, gamma_R, np.log(seconds_R / line_R)]))
    left_out = _left_out(points_R3)
    return Fitted(
        costs,
        points_R3 if left_out.line > max(left_out.between, _ROUNDING) else np.empty((0, 3)),
        prefill or 0.0,
        int(gamma_R.max()),
        max(1, int(requests_R.max())),
        left_out,
        bool((gamma_R == 0).any()),
    )


def _prefills(measured: Sequence[Measurement]) -> Floats | None:
    """Of others, in a step of one request: each of them begins anew once in as many steps as its answer takes. None where lengths
    are not known, or the steps were measured alone."""
    if any(one.tokens is None for one in measured):
        return None
    return np.array([max(0.0, one.requests - 1) * one.tokens_per_step / (one.tokens or 1.0) for one in measured])


def _first_token(measured: Sequence[Measurement]) -> float | None:
    """Of a request alone, or measured alone: nobody waits for anybody there."""
    known = [
        one.first_token for one in measured if (one.alone or one.requests < _COMPANY) and one.first_token is not None
    ]
    return float(np.median(known)) if known else None


def _merged(points_R3: Floats) -> Floats:
    """One point for what was measured several times."""
    places, where_R = np.unique(points_R3[:, :2], axis=0, return_inverse=True)
    means = np.bincount(where_R.ravel(), points_R3[:, 2]) / np.bincount(where_R.ravel())
    return np.column_stack([places, means])


def _left_out(points_R3: Floats) -> LeftOut:
    over_R = points_R3[:, 2]
    line = float(np.abs(np.expm1(-over_R)).mean())
    if len(points_R3) < 6:
        return LeftOut(line, line)
    errors = []
    for row in range(len(points_R3)):
        others = np.delete(points_R3, row, axis=0)
        guess = float(_between(others)(_places(points_R3[row : row + 1, 0], points_R3[row : row + 1, 1]))[0])
        errors.append(abs(np.expm1(guess - over_R[row])))
    return LeftOut(line, float(np.mean(errors)))


def _between(points_R3: Floats) -> RBFInterpolator:
    # Linear radial functions on a constant: they go level where nothing was measured.
    return RBFInterpolator(_places(points_R3[:, 0], points_R3[:, 1]), points_R3[:, 2], kernel="linear", degree=0)


def _places(requests: Floats, gamma: Floats) -> Floats:
    return np.column_stack([np.log2(requests), np.log2(gamma + 1)])


def fitted_from_json(raw: Any, where: str) -> Fitted:
    """UsageError, naming `where`, for what `Fitted.json` did not give."""
    if not isinstance(raw, Mapping) or set(raw) != _KEYS or raw["schema"] != SCHEMA:
        raise UsageError(f"{where}: no costs of schema {SCHEMA}; write them by `understudy latency fit`")
    try:
        costs = raw["costs"]
        coefficients = {
            name: Coefficient(value, 0.0 if low is None else low, np.inf if high is None else high)
            for name, (value, low, high) in costs["coefficients"].items()
        }
        experts = Experts(*costs["experts"]) if costs["experts"] else None
        found = Fitted(
            Costs(coefficients, tuple(costs["confounded"]), costs["mape"], costs["r2"], experts),
            np.array(raw["points"], dtype=np.float64).reshape(-1, 3),
            float(raw["prefill"]),
            int(raw["most_gamma"]),
            int(raw["most_requests"]),
            LeftOut(*raw["left_out"]),
            bool(raw["plain"]),
        )
        if not np.isfinite([*found.points_R3.ravel(), found.prefill, *found.step_seconds([1, 2], [0, 1])]).all():
            raise ValueError("a figure that is no number")
        if found.prefill < 0 or found.most_gamma < 0 or found.most_requests < 1:
            raise ValueError("a figure below its least")
        return found
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError, np.linalg.LinAlgError) as error:
        raise UsageError(f"{where}: not whole costs ({error}); write them by `understudy latency fit`") from None
