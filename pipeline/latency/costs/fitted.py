"""Step costs fitted to a server measured under load. Pure.

Two models are fitted: linear (`fit.py`) and piecewise linear (`piecewise.py`). The one with the smaller leave-one-out error
is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.fit import PREFILL, Coefficient, Experts, LinearCosts, fit_costs
from pipeline.latency.costs.measurements import MOST_GAMMA, Measurement
from pipeline.latency.costs.piecewise import Piecewise, fit_piecewise

Floats = NDArray[np.float64]

KIND, SCHEMA = "fitted costs", 2
_ROUNDING = 1e-9
_MIN_POINTS = 6  # distinct (requests, gamma) points below which only the linear model is used
_MAX_UNLOADED_BATCH = 1.5  # concurrent requests below which TTFT is the prefill time
_MIN_REMAINDER = 0.2  # least share of a step that must remain after prefills are subtracted
_CLEARLY_WORSE = 1.5  # ratio of MAPEs from which one fit counts as clearly worse
_PLAUSIBLE = {  # attributes of a measurement with the values that a server can have
    "step_seconds": (1e-7, 1e5),
    "requests": (1e-3, 1e6),
    "gamma": (0, MOST_GAMMA),
    "tokens_per_step": (1, MOST_GAMMA + 1),
    "output_tokens": (1e-3, 1e9),
    "ttft": (1e-9, 1e6),
}
_KEYS = {"kind", "schema", "costs", "bends", "prefill", "most_gamma", "most_requests", "left_out", "plain"}


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out error of both models: mean absolute relative error, as a share."""

    linear: float
    piecewise: float


@dataclass(frozen=True)
class FittedCosts:
    """Implements `StepCosts`. Valid for the context and prompt length of its measurements."""

    costs: LinearCosts
    piecewise: Piecewise | None  # None if the linear model is better
    prefill: float  # seconds per prefill at the mean prompt length; 0 if unknown
    max_gamma: int
    max_requests: int
    leave_one_out: LeaveOneOut
    plain: bool = True  # whether plain decoding was measured, the baseline of a speedup
    draft_digest: None = None  # unknown: measurements do not name the draft
    notes: tuple[str, ...] = ()

    def step_seconds(self, requests: ArrayLike, gamma: ArrayLike) -> Floats:
        """Seconds of a step without prefills; the arguments are broadcast."""
        return (self.piecewise or self.costs).step_seconds(requests, gamma)

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """As `Profile.steps`; `context` is ignored, the measurements have one."""
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


def fit_measurements(measured: Sequence[Measurement], experts: Experts | None = None) -> FittedCosts:
    """Fit both models. UsageError as for `fit_costs`, and for a value that no server has."""
    _check_plausible(measured)
    requests_R = np.array([one.requests for one in measured])
    gamma_R = np.array([one.gamma for one in measured])
    seconds_R, prefills_R, prefill = _without_prefills(measured)
    costs = fit_costs(requests_R, gamma_R, seconds_R, experts, prefills_R)
    if prefill and not all(one.isolated for one in measured):
        # The linear model fits the step times better with prefills included: the engine uses chunked prefill.
        whole_R = np.array([one.step_seconds for one in measured])
        whole = fit_costs(requests_R, gamma_R, whole_R, experts, None)
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


def _check_plausible(measured: Sequence[Measurement]) -> None:
    for one in measured:
        for name, (least, most) in _PLAUSIBLE.items():
            value = getattr(one, name)
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"{one.where}: {name} is {value:g}, and plausible are {least:g} to {most:g}; correct or remove it"
                )


def _choose_piecewise(
    requests_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None
) -> tuple[Piecewise | None, LeaveOneOut]:
    """The piecewise model if its leave-one-out error is smaller, else None; both errors are 0 if there are too few points."""
    points_P2, point_R = np.unique(np.column_stack([requests_R, gamma_R]), axis=0, return_inverse=True)
    if len(points_P2) < _MIN_POINTS or (seconds_R <= 0).any():
        return None, LeaveOneOut(0.0, 0.0)
    counted = np.bincount(point_R.ravel())
    batch_P, gamma_P, seconds_P = *points_P2.T, np.bincount(point_R.ravel(), seconds_R) / counted
    piecewise, linear_error, error = fit_piecewise(batch_P, gamma_P, seconds_P, experts)
    return piecewise if linear_error > error + _ROUNDING else None, LeaveOneOut(linear_error, error)


def _without_prefills(measured: Sequence[Measurement]) -> tuple[Floats, Floats | None, float | None]:
    """Step times, the prefills per step that are still in them and must be fitted, and seconds per prefill if known."""
    seconds_R = np.array([one.step_seconds for one in measured])
    prefills_R, prefill = _prefills(measured), _unloaded_ttft(measured)
    if prefills_R is None or prefill is None:
        return seconds_R, prefills_R, prefill if all(one.isolated for one in measured) else None
    # The fit cannot separate a prefill from the cost per request, so a known prefill time is subtracted. If too little of a
    # step remains, the engine uses chunked prefill, and step times are used unchanged.
    without_R = seconds_R - prefill * prefills_R
    sliced = not (without_R > _MIN_REMAINDER * seconds_R).all()
    return (seconds_R, None, 0.0) if sliced else (without_R, None, prefill)


def _prefills(measured: Sequence[Measurement]) -> Floats | None:
    """Prefills of other requests per step in a closed loop: each other request starts anew once per output length. None if
    output lengths are unknown."""
    if any(one.output_tokens is None for one in measured):
        return None
    return np.array([max(0.0, one.requests - 1) * one.tokens_per_step / (one.output_tokens or 1.0) for one in measured])


def _unloaded_ttft(measured: Sequence[Measurement]) -> float | None:
    """Median TTFT of measurements without queueing: one request at a time, or measured in isolation."""
    known = [
        one.ttft for one in measured if (one.isolated or one.requests < _MAX_UNLOADED_BATCH) and one.ttft is not None
    ]
    return float(np.median(known)) if known else None


def fitted_costs_from_json(raw: Any, where: str) -> FittedCosts:
    """Inverse of `FittedCosts.json`. UsageError, naming `where`, for any other content."""
    if not isinstance(raw, Mapping) or set(raw) != _KEYS or raw["schema"] != SCHEMA:
        raise UsageError(f"{where}: not a costs file of schema {SCHEMA}; write one with `understudy latency fit`")
    try:
        costs = raw["costs"]
        coefficients = {
            name: Coefficient(float(value), 0.0 if low is None else float(low), np.inf if high is None else float(high))
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
            raise ValueError("a value is not finite")
        if found.prefill < 0 or found.max_gamma < 0 or found.max_requests < 1:
            raise ValueError("a value is negative or too small")
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
        raise UsageError(f"{where}: invalid costs file ({error}); write one with `understudy latency fit`") from None


def _piecewise_from_json(raw: Any, experts: Experts | None) -> Piecewise | None:
    if raw is None:
        return None
    breakpoints, draft_breakpoints, tiles, values = (tuple(map(float, one)) for one in raw)
    return Piecewise(breakpoints, draft_breakpoints, tiles, values, experts)
