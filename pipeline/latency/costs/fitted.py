"""A server measured under load: costs of its steps as a line, and with bends where those predict better. Pure.

Which is better is decided by predicting each measurement from the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.fit import PREFILL, Coefficient, Experts, LinearCosts, fit_costs
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.piecewise import Piecewise, fit_piecewise

Floats = NDArray[np.float64]

KIND, SCHEMA = "fitted costs", 2
_ROUNDING = 1e-9
_MIN_POINTS = 6  # places below which nobody can say that a line does not fit
_MAX_UNLOADED_BATCH = 1.5  # requests at once from which a first token may have waited for others'
_MIN_REMAINDER = 0.2  # of a step, that is not prefills
_CLEARLY_WORSE = 1.5  # times the error, that is no luck
_KEYS = {"kind", "schema", "costs", "bends", "prefill", "most_gamma", "most_requests", "left_out", "plain"}


@dataclass(frozen=True)
class LeaveOneOut:
    """Mean relative error in predicting each measurement from the others."""

    linear: float
    piecewise: float


@dataclass(frozen=True)
class FittedCosts:
    """Answers as a profile does; what it was measured at has one context and one length of prompts."""

    costs: LinearCosts
    piecewise: Piecewise | None  # None where the line does
    prefill: float  # seconds of a mean prompt; 0 where nothing said it
    max_gamma: int
    max_requests: int
    leave_one_out: LeaveOneOut
    plain: bool = True  # whether plain decoding was measured: nothing can be held against it otherwise
    draft_digest: None = None  # nobody says which draft a server had
    notes: tuple[str, ...] = ()

    def step_seconds(self, requests: ArrayLike, gamma: ArrayLike) -> Floats:
        """Of a step without prefills; broadcast against each other."""
        return (self.piecewise or self.costs).step_seconds(requests, gamma)

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """As `Profile.steps`; `context` is what it was when it was measured."""
        gamma_G = np.arange((self.max_gamma if gammas is None else gammas) + 1)[:, None]
        return self.step_seconds(np.arange(1, cap + 1), gamma_G)

    def prefills(self, tokens: ArrayLike) -> Floats:
        return np.full(np.shape(tokens), self.prefill)

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        return batch <= self.max_requests and gamma <= self.max_gamma

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
                "experts": [costs.experts.active, costs.experts.total] if costs.experts else None,
            },
            "bends": [
                list(one)
                for one in (
                    self.piecewise.breakpoints,
                    self.piecewise.draft_breakpoints,
                    self.piecewise.tiles,
                    self.piecewise.values_K,
                )
            ]
            if self.piecewise
            else None,
            "prefill": self.prefill,
            "most_gamma": self.max_gamma,
            "most_requests": self.max_requests,
            "plain": self.plain,
            "left_out": [self.leave_one_out.linear, self.leave_one_out.piecewise],
        }


def fit_measurements(
    measured: Sequence[Measurement], experts: Experts | None = None, confidence: float = 0.95
) -> FittedCosts:
    """UsageError where they are too few, of one load, or no times."""
    requests_R = np.array([one.requests for one in measured])
    gamma_R = np.array([one.gamma for one in measured])
    seconds_R, prefills_R, prefill = _without_prefills(measured)
    costs = fit_costs(requests_R, gamma_R, seconds_R, experts, prefills_R, confidence)
    if prefill and not all(one.isolated for one in measured):
        # A line that fits steps as they were measured, but not what prefills should have left of them: the engine slices them.
        whole_R = np.array([one.step_seconds for one in measured])
        whole = fit_costs(requests_R, gamma_R, whole_R, experts, None, confidence)
        if costs.mape > _CLEARLY_WORSE * whole.mape + _ROUNDING:
            costs, seconds_R, prefill = whole, whole_R, 0.0
    prefill_cost = costs.coefficients.get(PREFILL)
    if prefill_cost is not None and prefills_R is not None:
        seconds_R = seconds_R - prefill_cost.value * prefills_R
        prefill = 0.0 if PREFILL in costs.confounded else prefill_cost.value
    piecewise, errors = _choose_piecewise(requests_R, gamma_R, seconds_R, experts)
    return FittedCosts(
        costs,
        piecewise,
        prefill or 0.0,
        int(gamma_R.max()),
        max(1, int(requests_R.max())),
        errors,
        bool((gamma_R == 0).any()),
    )


def _choose_piecewise(
    requests_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None
) -> tuple[Piecewise | None, LeaveOneOut]:
    """What predicts measurements that it has not seen better than the line; None where nothing does, or they are few."""
    points_P2, point_R = np.unique(np.column_stack([requests_R, gamma_R]), axis=0, return_inverse=True)
    if len(points_P2) < _MIN_POINTS or (seconds_R <= 0).any():
        return None, LeaveOneOut(0.0, 0.0)
    counted = np.bincount(point_R.ravel())
    batch_P, gamma_P, seconds_P = *points_P2.T, np.bincount(point_R.ravel(), seconds_R) / counted
    piecewise, linear_error, error = fit_piecewise(batch_P, gamma_P, seconds_P, experts)
    return piecewise if linear_error > error + _ROUNDING else None, LeaveOneOut(linear_error, error)


def _without_prefills(measured: Sequence[Measurement]) -> tuple[Floats, Floats | None, float | None]:
    """Seconds of each step, what is left in them for a fit to find (prefills a step), and seconds of a prefill where known."""
    seconds_R = np.array([one.step_seconds for one in measured])
    prefills_R, prefill = _prefills(measured), _unloaded_ttft(measured)
    if prefills_R is None or prefill is None:
        return seconds_R, prefills_R, prefill if all(one.isolated for one in measured) else None
    # Known from elsewhere: no line could tell it from a request's own share. An engine that slices prefills into its steps
    # has too little left, and its steps are taken as they are.
    without_R = seconds_R - prefill * prefills_R
    sliced = not (without_R > _MIN_REMAINDER * seconds_R).all()
    return (seconds_R, None, 0.0) if sliced else (without_R, None, prefill)


def _prefills(measured: Sequence[Measurement]) -> Floats | None:
    """Of others, in a step of one request: each of them begins anew once in as many steps as its answer takes. None where lengths
    are not known, or the steps were measured alone."""
    if any(one.output_tokens is None for one in measured):
        return None
    return np.array([max(0.0, one.requests - 1) * one.tokens_per_step / (one.output_tokens or 1.0) for one in measured])


def _unloaded_ttft(measured: Sequence[Measurement]) -> float | None:
    """Of a request alone, or measured alone: nobody waits for anybody there."""
    known = [
        one.ttft for one in measured if (one.isolated or one.requests < _MAX_UNLOADED_BATCH) and one.ttft is not None
    ]
    return float(np.median(known)) if known else None


def fitted_costs_from_json(raw: Any, where: str) -> FittedCosts:
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
        found = FittedCosts(
            LinearCosts(coefficients, tuple(costs["confounded"]), costs["mape"], costs["r2"], experts),
            _piecewise_from_json(raw["bends"], experts),
            float(raw["prefill"]),
            int(raw["most_gamma"]),
            int(raw["most_requests"]),
            LeaveOneOut(*raw["left_out"]),
            bool(raw["plain"]),
        )
        if not np.isfinite([found.prefill, *found.step_seconds([1, 2], [0, 1])]).all():
            raise ValueError("a figure that is no number")
        if found.prefill < 0 or found.max_gamma < 0 or found.max_requests < 1:
            raise ValueError("a figure below its least")
        return found
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        ZeroDivisionError,
        np.linalg.LinAlgError,
    ) as error:
        raise UsageError(f"{where}: not whole costs ({error}); write them by `understudy latency fit`") from None


def _piecewise_from_json(raw: Any, experts: Experts | None) -> Piecewise | None:
    if raw is None:
        return None
    breakpoints, draft_breakpoints, tiles, values = (tuple(map(float, one)) for one in raw)
    return Piecewise(breakpoints, draft_breakpoints, tiles, values, experts)
