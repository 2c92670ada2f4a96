"""Fit step costs to the measurements of a server under load. Pure.

Linear (`fit.py`) or of another form (`piecewise.py`, chosen by `forms.py`), of the steps with or without prefills
(`prefills.py`): what predicts left-out measurements best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import EdgeError
from pipeline.latency.costs.fit import Experts, columns, is_one_load
from pipeline.latency.costs.fitted import FittedCosts, Floats, LeaveOneOut
from pipeline.latency.costs.forms import MIN_POINTS, choose_form, edge_error, left_out
from pipeline.latency.costs.measurements import MOST_GAMMA, Measurement
from pipeline.latency.costs.piecewise import Piecewise
from pipeline.latency.costs.prefills import Treatment, prefills_of_others, treatments, unloaded_ttft
from pipeline.latency.costs.repeats import point_numbers
from pipeline.latency.costs.server_facts import measured_cells

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
    _check_comparable(measured)
    requests_R = np.array([measurement.requests for measurement in measured])
    gamma_R = np.array([measurement.gamma for measurement in measured])
    tried = [
        (treatment, *_chosen(requests_R, gamma_R, treatment, experts)) for treatment in treatments(measured, experts)
    ]
    least = min(error for *_, error in tried)
    # A prefill time that is known from TTFT goes before a fitted one and before none unless these are clearly better.
    good = [trial for trial in tried if trial[-1] <= max(_AS_GOOD * least, least + _AS_GOOD_POINTS)]
    treatment, piecewise, errors, _ = min(
        good, key=lambda trial: (not trial[0].known, trial[-1] if trial[0].known else 0.0)
    )
    lengths = {} if any(measurement.isolated for measurement in measured) else _tokens_by_gamma(measured)
    known = [measurement.output_tokens for measurement in measured if measurement.output_tokens is not None]
    measured_requests = {
        gamma: (low := max(1, int(np.ceil(of_gamma.min()))), max(low, int(of_gamma.max())))
        for gamma in sorted(set(gamma_R.tolist()))
        if len(of_gamma := requests_R[gamma_R == gamma])
    }
    return FittedCosts(
        costs=treatment.costs,
        piecewise=piecewise,
        prefill=treatment.prefill,
        max_gamma=int(gamma_R.max()),
        max_requests=max(high for _, high in measured_requests.values()),
        leave_one_out=errors,
        edge=_edge(requests_R, gamma_R, treatment.seconds_R, experts, errors.chosen) if errors else None,
        plain=bool((gamma_R == 0).any()),
        min_requests=max(low for low, _ in measured_requests.values()),
        tokens_by_gamma=lengths,
        tokens_error=_tokens_error(measured) if lengths else 0.0,
        measured_requests=measured_requests,
        output_tokens=float(np.mean(known)) if known else None,
        batch_share=_batch_share(measured),
        first_token=unloaded_ttft(measured) or 0.0,
        max_throughput=_max_throughput(measured),
        cells=measured_cells(measured),
        acceptance_known=all(measurement.acceptance_known for measurement in measured),
    )


def worst_misfit(costs: FittedCosts, measured: Sequence[Measurement]) -> Misfit:
    """The measurement that the costs describe worst."""

    def misfit(measurement: Measurement) -> Misfit:
        prefills = 0.0 if measurement.isolated else costs.prefill * (prefills_of_others(measurement) or 0.0)
        fitted = float(costs.step_seconds(measurement.requests, measurement.gamma)) + prefills
        return Misfit(measurement.where, measurement.step_seconds / fitted - 1)

    return max(map(misfit, measured), key=lambda missed: abs(missed.error))


def _tokens_by_gamma(measured: Sequence[Measurement]) -> dict[int, float]:
    """Mean tokens per step by draft length."""
    by_gamma: dict[int, list[float]] = {}
    for measurement in measured:
        by_gamma.setdefault(measurement.gamma, []).append(measurement.tokens_per_step)
    return {gamma: float(np.mean(lengths)) for gamma, lengths in sorted(by_gamma.items())}


def _tokens_error(measured: Sequence[Measurement]) -> float:
    """Mean absolute relative error of the tokens per step of each measurement with a draft, predicted by the mean of the others
    at its draft length. 0 where a draft length has one measurement: nothing shows."""
    errors = []
    for gamma in {measurement.gamma for measurement in measured} - {0}:
        lengths_R = np.array([measurement.tokens_per_step for measurement in measured if measurement.gamma == gamma])
        if len(lengths_R) > 1:
            others_R = (lengths_R.sum() - lengths_R) / (len(lengths_R) - 1)
            errors += np.abs(others_R / lengths_R - 1).tolist()
    return float(np.mean(errors)) if errors else 0.0


def _max_throughput(measured: Sequence[Measurement]) -> tuple[float, float] | None:
    """The largest number of tokens per second, of plain decoding and of all; from the steps where the table has none. 0 for plain
    decoding that was not measured; None for steps that were measured without requests."""
    if any(measurement.isolated for measurement in measured):
        return None

    def largest(some: Sequence[Measurement]) -> float:
        return max(
            (
                measurement.throughput
                or (measurement.in_batch or measurement.requests)
                * measurement.tokens_per_step
                / measurement.step_seconds
                for measurement in some
            ),
            default=0.0,
        )

    return largest([measurement for measurement in measured if measurement.gamma == 0]), largest(measured)


def _batch_share(measured: Sequence[Measurement]) -> dict[int, float]:
    """Median share of the concurrency that is in the batch, by draft length; of one request it is all."""
    by_gamma: dict[int, list[float]] = {}
    for measurement in measured:
        if measurement.requests > 1:
            in_batch = measurement.in_batch or measurement.requests
            by_gamma.setdefault(measurement.gamma, []).append(in_batch / measurement.requests)
    shares = {gamma: float(np.median(each)) for gamma, each in sorted(by_gamma.items())}
    return shares if any(share < 1 for share in shares.values()) else {}


def _check_plausible(measured: Sequence[Measurement]) -> None:
    unknown = [measurement for measurement in measured if not measurement.acceptance_known]
    stated = [measurement for measurement in measured if measurement.acceptance_known and measurement.gamma]
    if unknown and stated:
        raise UsageError(
            f"{unknown[0].where}: the acceptance is unknown, and {stated[0].where} states one; fit the two files alone"
        )
    for measurement in measured:
        for name, (least, most) in _PLAUSIBLE.items():
            value = getattr(measurement, name)
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"{measurement.where}: {name} is {value:g}, and plausible are {least:g} to {most:g}; correct or remove it"
                )


def _check_comparable(measured: Sequence[Measurement]) -> None:
    """UsageError for draft lengths that were each measured at a load of its own: neither as many requests nor, as at one rate of
    arrivals, as many tokens per second. So are those of a profile, of which other batch sizes are asked."""
    gammas = [measurement.gamma for measurement in measured]
    requests = np.array([measurement.requests for measurement in measured])
    rates = [measurement.requests * measurement.tokens_per_step / measurement.step_seconds for measurement in measured]
    one_load = not measured[0].isolated and any(
        is_one_load(loads, np.zeros(len(measured))) for loads in (requests, rates)
    )
    if len(set(gammas)) > 1 and is_one_load(requests, gammas) and not one_load:
        raise UsageError(
            f"all draft lengths were measured at loads of their own or alone ({requests.min():.3g} to {requests.max():.3g}), "
            "so the cost of a request is unknown; measure one length at two loads, or all lengths of a server at one"
        )


def _chosen(
    requests_R: Floats, gamma_R: Floats, treatment: Treatment, experts: Experts | None
) -> tuple[Piecewise | None, LeaveOneOut | None, float]:
    """The model of a treatment's steps, left-out errors of the steps (to each repeat of a left-out point), and the left-out error
    of whole steps, prefills included, by which treatments are compared. With too few points the linear model, no left-out
    errors, and its error on what it was fitted to."""
    seconds_R, prefills_R = treatment.seconds_R, treatment.prefill * treatment.prefills_R
    point_R = point_numbers(requests_R, gamma_R)
    if point_R.max() + 1 < MIN_POINTS or is_one_load(requests_R, gamma_R):
        fitted_R = treatment.costs.step_seconds(requests_R, gamma_R)
        whole = float(np.abs((fitted_R - seconds_R) / (seconds_R + prefills_R)).mean())
        return None, None, whole
    requests_P, gamma_P, seconds_P, prefills_P = _means(point_R, requests_R, gamma_R, seconds_R, prefills_R)
    choice = choose_form(requests_P, gamma_P, seconds_P, experts)
    # The linear costs are fitted to all repeats, another form to their means.
    linear_R = left_out(columns(requests_R, gamma_R, experts), seconds_R, 0.0, point_R)
    linear, chosen = (
        float((np.bincount(point_R, np.abs(one_R / seconds_R - 1)) / np.bincount(point_R)).mean())
        for one_R in (linear_R, choice.chosen_R[point_R] if choice.piecewise else linear_R)
    )
    whole = float(np.abs((choice.chosen_R - seconds_P) / (seconds_P + prefills_P)).mean())
    return choice.piecewise, LeaveOneOut(linear, chosen), whole


def _edge(
    requests_R: Floats, gamma_R: Floats, seconds_R: Floats, experts: Experts | None, inside: float
) -> EdgeError | None:
    """The error of the outermost loads, by the means of repeats."""
    requests_P, gamma_P, seconds_P = _means(point_numbers(requests_R, gamma_R), requests_R, gamma_R, seconds_R)
    return edge_error(requests_P, gamma_P, seconds_P, experts, inside)


def _means(point_R: NDArray[np.int64], *values: Floats) -> list[Floats]:
    """The mean of each value by point."""
    return [np.bincount(point_R, one_R) / np.bincount(point_R) for one_R in values]
