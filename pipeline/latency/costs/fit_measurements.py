"""Fit step costs to the measurements of a server under load. Pure.

Linear (`fit.py`) or piecewise linear (`piecewise.py`), of the steps with or without prefills (`prefills.py`): the model that
predicts left-out measurements best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.fit import Experts
from pipeline.latency.costs.fitted import FittedCosts, Floats, LeaveOneOut
from pipeline.latency.costs.measurements import MOST_GAMMA, Measurement
from pipeline.latency.costs.piecewise import Choice, Piecewise, choose_model
from pipeline.latency.costs.prefills import Treatment, prefills_of_others, treatments, unloaded_ttft

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


@dataclass(frozen=True)
class Misfit:
    """A measurement, and the relative difference of its step from the fitted costs."""

    where: str
    error: float


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
        costs=treatment.costs,
        piecewise=piecewise,
        prefill=treatment.prefill,
        max_gamma=int(gamma_R.max()),
        max_requests=max(1, int(requests_R.max())),
        leave_one_out=errors,
        plain=bool((gamma_R == 0).any()),
        min_requests=max(1, *(int(np.ceil(requests_R[gamma_R == gamma].min())) for gamma in set(gamma_R.tolist()))),
        tokens_by_gamma=lengths,
        gammas=tuple(sorted({one.gamma for one in measured})),
        output_tokens=float(np.mean(known)) if known else None,
        batch_share=_batch_share(measured),
        first_token=unloaded_ttft(measured) or 0.0,
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
