"""Step costs fitted to a server measured under load. Pure.

Linear (`fit.py`) or piecewise linear (`piecewise.py`), of the steps with or without prefills (`prefills.py`): what predicts best
the measurements that were left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.fit import Coefficient, Experts, LinearCosts
from pipeline.latency.costs.measurements import MOST_GAMMA, MOST_REQUESTS, Measurement
from pipeline.latency.costs.piecewise import Choice, Piecewise, Terms, choose_model
from pipeline.latency.costs.prefills import Treatment, prefills_of_others, treatments, unloaded_ttft

Floats = NDArray[np.float64]

KIND, SCHEMA = "fitted costs", 3
_MIN_POINTS = 6  # distinct (requests, gamma) points below which only the linear model is used
_REPEAT = 1.08  # ratio of two numbers of requests up to which they are one point
# Left-out error up to which a preferred treatment of prefills is kept: ratio to the least, and difference.
_AS_GOOD, _AS_GOOD_POINTS = 1.1, 0.001
_PLAUSIBLE = {  # attributes of a measurement with the values that a server can have
    "step_seconds": (1e-7, 1e5),
    "requests": (1e-3, 1e6),
    "gamma": (0, MOST_GAMMA),
    "tokens_per_step": (1, MOST_GAMMA + 1),
    "output_tokens": (1e-3, 1e9),
    "ttft": (1e-9, 1e6),
}
_MOST_TERMS = 200  # in a file
_CHECKED = 50  # numbers of requests at which the step times of a file are looked at


@dataclass(frozen=True)
class LeaveOneOut:
    """Left-out error of both models: mean absolute relative error, as a share; 0 with too few points."""

    linear: float
    chosen: float


@dataclass(frozen=True)
class Misfit:
    """A measurement, and the relative difference of its step from the fitted costs."""

    where: str
    error: float


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
    min_requests: int = 1  # the lightest load at which every draft length was measured
    tokens_by_gamma: Mapping[int, float] = field(default_factory=dict)  # measured tokens per step; empty if unknown
    gammas: tuple[int, ...] = ()  # measured draft lengths; empty if unknown
    output_tokens: float | None = None  # mean output length
    batch_share: Mapping[int, float] = field(
        default_factory=dict
    )  # requests in the batch / concurrency by draft length
    first_token: float = 0.0  # TTFT of a request that is alone, in seconds; 0 if unknown
    draft_digest: None = None  # unknown: measurements do not name the draft
    notes: tuple[str, ...] = ()

    def step_seconds(self, requests: ArrayLike, gamma: ArrayLike) -> Floats:
        """Seconds of a step without prefills; the arguments are broadcast. A step with fewer requests than were measured at every
        draft length takes at least its share of the time of those: a straight line could go below."""
        model, requests = self.piecewise or self.costs, np.asarray(requests, dtype=np.float64)
        least = float(self.min_requests)
        share = np.minimum(requests / least, 1.0)
        seconds: Floats = np.maximum(
            model.step_seconds(requests, gamma), share * model.step_seconds(np.maximum(requests, least), gamma)
        )
        return seconds

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """As `Profile.steps`; `context` is ignored, the measurements have one. n requests are in the batch of a closed loop whose
        concurrency is higher, by the share that waits or has not begun."""
        gamma_G, count_N = np.arange((self.max_gamma if gammas is None else gammas) + 1)[:, None], np.arange(1, cap + 1)
        known = dict(sorted(self.batch_share.items())) or {0: 1.0}
        share_G = np.interp(gamma_G, list(known), list(known.values()))
        return self.step_seconds(np.where(count_N > 1, count_N / share_G, 1.0), gamma_G)

    def prefills(self, tokens: ArrayLike) -> Floats:
        return np.full(np.shape(tokens), self.prefill)

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        return self.min_requests <= batch <= self.max_requests and gamma <= self.max_gamma

    @property
    def first_steps(self) -> int:
        """1 if the TTFT of a request that is alone is a step or more beyond a blocking prefill; half a step is taken for one."""
        return int(self.first_token - self.prefill > 0.5 * float(self.step_seconds(1, 0)))

    def measured(self, gamma: int) -> bool:
        return not self.gammas or gamma in self.gammas

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
            "piecewise": {**asdict(self.piecewise.terms), "values": list(self.piecewise.values_K)}
            if self.piecewise
            else None,
            "prefill": self.prefill,
            "first_token": self.first_token,
            "most_gamma": self.max_gamma,
            "least_requests": self.min_requests,
            "most_requests": self.max_requests,
            "gammas": list(self.gammas),
            "tokens_per_step": {str(gamma): tokens for gamma, tokens in self.tokens_by_gamma.items()},
            "output_tokens": self.output_tokens,
            "batch_share": {str(gamma): share for gamma, share in self.batch_share.items()},
            "plain": self.plain,
            "left_out": [self.leave_one_out.linear, self.leave_one_out.chosen],
        }


_KEYS = set(FittedCosts(LinearCosts({}, (), 0.0, 0.0, None), None, 0.0, 0, 1, LeaveOneOut(0.0, 0.0)).json())


def fit_measurements(measured: Sequence[Measurement], experts: Experts | None = None) -> FittedCosts:
    """Fit the models and choose. UsageError as for `fit_costs`, and for a value that no server has."""
    _check_plausible(measured)
    requests_R = np.array([one.requests for one in measured])
    gamma_R = np.array([one.gamma for one in measured])
    tried = [(one, *_chosen(requests_R, gamma_R, one, experts)) for one in treatments(measured, experts)]
    least = min(error for *_, error in tried)
    # A prefill time that is known from TTFT goes before a fitted one and before none unless these are clearly better.
    good = [one for one in tried if one[-1] <= max(_AS_GOOD * least, least + _AS_GOOD_POINTS)]
    treatment, piecewise, errors, _ = min(good, key=lambda one: (not one[0].known, one[-1] if one[0].known else 0.0))
    lengths = {} if any(one.isolated for one in measured) else _tokens_by_gamma(measured)
    known = [one.output_tokens for one in measured if one.output_tokens is not None]
    return FittedCosts(
        treatment.costs,
        piecewise,
        treatment.prefill,
        int(gamma_R.max()),
        max(1, int(requests_R.max())),
        errors,
        bool((gamma_R == 0).any()),
        max(1, *(int(np.ceil(requests_R[gamma_R == gamma].min())) for gamma in set(gamma_R.tolist()))),
        lengths,
        tuple(sorted({one.gamma for one in measured})),
        float(np.mean(known)) if known else None,
        _batch_share(measured),
        unloaded_ttft(measured) or 0.0,
    )


def worst_misfit(found: FittedCosts, measured: Sequence[Measurement]) -> Misfit:
    """The measurement that the costs describe worst."""

    def misfit(one: Measurement) -> Misfit:
        prefills = 0.0 if one.isolated else found.prefill * (prefills_of_others(one) or 0.0)
        fitted = float(found.step_seconds(one.requests, one.gamma)) + prefills
        return Misfit(one.where, one.step_seconds / fitted - 1)

    return max(map(misfit, measured), key=lambda one: abs(one.error))


def _tokens_by_gamma(measured: Sequence[Measurement]) -> dict[int, float]:
    """Mean tokens per step by draft length."""
    found: dict[int, list[float]] = {}
    for one in measured:
        found.setdefault(one.gamma, []).append(one.tokens_per_step)
    return {gamma: float(np.mean(lengths)) for gamma, lengths in sorted(found.items())}


def _batch_share(measured: Sequence[Measurement]) -> dict[int, float]:
    """Median share of the concurrency that is in the batch, by draft length; of one request it is all."""
    found: dict[int, list[float]] = {}
    for one in measured:
        if one.requests > 1:
            found.setdefault(one.gamma, []).append((one.in_batch or one.requests) / one.requests)
    shares = {gamma: float(np.median(each)) for gamma, each in sorted(found.items())}
    return shares if any(share < 1 for share in shares.values()) else {}


def _check_plausible(measured: Sequence[Measurement]) -> None:
    for one in measured:
        for name, (least, most) in _PLAUSIBLE.items():
            value = getattr(one, name)
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"{one.where}: {name} is {value:g}, and plausible are {least:g} to {most:g}; correct or remove it"
                )


def _chosen(
    requests_R: Floats, gamma_R: Floats, treatment: Treatment, experts: Experts | None
) -> tuple[Piecewise | None, LeaveOneOut, float]:
    """The model of a treatment's steps, left-out errors of the steps, and the left-out error of whole steps, prefills included,
    by which treatments are compared. With too few points the linear model and its error on what it was fitted to."""
    seconds_R, prefills_R = treatment.seconds_R, treatment.prefill * treatment.prefills_R
    point_R = _point_numbers(requests_R, gamma_R)
    if point_R.max() + 1 < _MIN_POINTS:
        fitted_R = treatment.costs.step_seconds(requests_R, gamma_R)
        whole = float(np.abs((fitted_R - seconds_R) / (seconds_R + prefills_R)).mean())
        return None, LeaveOneOut(0.0, 0.0), whole
    requests_P, gamma_P, seconds_P, prefills_P = (
        np.bincount(point_R, one_R) / np.bincount(point_R) for one_R in (requests_R, gamma_R, seconds_R, prefills_R)
    )
    choice: Choice = choose_model(requests_P, gamma_P, seconds_P, experts)
    linear, chosen = (float(np.abs(one_R / seconds_P - 1).mean()) for one_R in (choice.linear_R, choice.chosen_R))
    whole = float(np.abs((choice.chosen_R - seconds_P) / (seconds_P + prefills_P)).mean())
    return choice.piecewise, LeaveOneOut(linear, chosen), whole


def _point_numbers(requests_R: Floats, gamma_R: Floats) -> NDArray[np.int64]:
    """The number of each measurement's point. Measurements of one draft length at nearly the same number of requests are repeats
    of one point: each would otherwise tell the others when it is left out."""
    order_R = np.lexsort((requests_R, gamma_R))
    point_R, first, number = np.zeros(len(order_R), dtype=np.int64), order_R[0], 0
    for one in order_R:
        if gamma_R[one] != gamma_R[first] or requests_R[one] > _REPEAT * requests_R[first]:
            first, number = one, number + 1
        point_R[one] = number
    return point_R


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
            _piecewise_from_json(raw["piecewise"], experts),
            float(raw["prefill"]),
            int(raw["most_gamma"]),
            int(raw["most_requests"]),
            LeaveOneOut(*raw["left_out"]),
            bool(raw["plain"]),
            int(raw["least_requests"]),
            {int(gamma): float(tokens) for gamma, tokens in raw["tokens_per_step"].items()},
            tuple(map(int, raw["gammas"])),
            None if raw["output_tokens"] is None else float(raw["output_tokens"]),
            {int(gamma): float(share) for gamma, share in raw["batch_share"].items()},
            float(raw["first_token"]),
        )
        _check_sound(found)
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


def _check_sound(found: FittedCosts) -> None:
    """ValueError for values that no fit writes. Without bounds a damaged file could ask for billions of draft lengths."""
    if not 0 <= found.max_gamma <= MOST_GAMMA:
        raise ValueError(f"most_gamma is {found.max_gamma}; possible are 0 to {MOST_GAMMA}")
    if not 1 <= found.min_requests <= found.max_requests <= MOST_REQUESTS:
        raise ValueError(f"least_requests and most_requests must be from 1 to {MOST_REQUESTS:,}, ascending")
    if any(not 1 <= tokens <= gamma + 1 for gamma, tokens in found.tokens_by_gamma.items()):
        raise ValueError("tokens_per_step must be from 1 to the draft length + 1")
    if any(not 0 < share <= 1 for share in found.batch_share.values()):
        raise ValueError("batch_share must be above 0 and at most 1")
    if any(not 0 <= gamma <= found.max_gamma for gamma in (*found.gammas, *found.tokens_by_gamma, *found.batch_share)):
        raise ValueError("a draft length is not from 0 to most_gamma")
    if found.output_tokens is not None and not 0 < found.output_tokens < np.inf:
        raise ValueError("output_tokens must be above 0")
    if not np.isfinite([found.prefill, found.first_token]).all():
        raise ValueError("a value is not finite")
    requests_N = np.unique(np.geomspace(1, found.max_requests, _CHECKED).round())
    steps_GN = found.step_seconds(requests_N, np.arange(0 if found.plain else 1, found.max_gamma + 1)[:, None])
    if not (np.isfinite(steps_GN) & (steps_GN > 0)).all():
        raise ValueError("a step takes no time")
    if min(found.prefill, found.first_token) < 0:
        raise ValueError("prefill or first_token is negative")


def _piecewise_from_json(raw: Any, experts: Experts | None) -> Piecewise | None:
    if raw is None:
        return None
    lists = {name: tuple(map(float, raw[name])) for name in ("breakpoints", "draft_breakpoints", "tiles", "drops")}
    if any(len(one) > _MOST_TERMS or any(value <= 0 for value in one) for one in lists.values()):
        raise ValueError("a breakpoint is not above 0, or there are too many")
    least = {name: float(raw[name]) for name in ("least_tokens", "least_requests")}
    if not min(least.values()) > 0:
        raise ValueError("least_tokens and least_requests must be above 0")
    terms = Terms(
        lists["breakpoints"],
        lists["draft_breakpoints"],
        least["least_tokens"],
        least["least_requests"],
        lists["tiles"],
        lists["drops"],
    )
    return Piecewise(terms, tuple(map(float, raw["values"])), experts)
