"""How measured steps are freed of the prefills of other requests. Pure.

An engine that runs a whole prefill between two steps delays the batch by the time of a prefill; one that puts prompt tokens into
a step (chunked prefill) makes that step longer, by less, because the step reads the weights without them too; one that slices
prefills into many steps spreads them. The measurements do not state which, so each treatment is tried, and the steps that the
others predict decide (`fitted.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.fit import PREFILL, Experts, LinearCosts, fit_costs, is_one_load
from pipeline.latency.costs.measurements import Measurement

Floats = NDArray[np.float64]

_MAX_UNLOADED_BATCH = 1.5  # concurrent requests below which TTFT is the prefill time
_MIN_REMAINDER = 0.2  # least share of a step that must remain after prefills are subtracted


@dataclass(frozen=True)
class Treatment:
    """Steps without prefills, and what was taken out: `prefill` seconds for each of `prefills_R`, known from TTFT or not."""

    costs: LinearCosts  # fitted to the steps
    seconds_R: Floats
    prefills_R: Floats
    prefill: float
    known: bool = False


def treatments(measured: Sequence[Measurement], experts: Experts | None) -> Iterator[Treatment]:
    """TTFT of one request is subtracted; TTFT less a step; a fitted time; none."""
    requests_R = np.array([measurement.requests for measurement in measured])
    gamma_R = np.array([measurement.gamma for measurement in measured])
    seconds_R = np.array([measurement.step_seconds for measurement in measured])
    none_R = np.zeros(len(measured))
    whole = fit_costs(requests_R, gamma_R, seconds_R, experts)
    if all(measurement.isolated for measurement in measured):
        yield Treatment(whole, seconds_R, none_R, unloaded_ttft(measured) or 0.0)
        return
    prefills_R = np.array([prefills_of_others(measurement) or 0.0 for measurement in measured])
    if (
        prefills_R.any()
        and not is_one_load(requests_R, gamma_R)
        and all(measurement.output_tokens is not None for measurement in measured)
    ):
        for time in _known_prefills(measured):
            if _remains(without_R := seconds_R - time * prefills_R, seconds_R):
                without = fit_costs(requests_R, gamma_R, without_R, experts)
                yield Treatment(without, without_R, prefills_R, time, known=True)
        fitted = fit_costs(requests_R, gamma_R, seconds_R, experts, prefills_R)
        value = fitted.coefficients[PREFILL].value
        # A prefill that cannot be told apart, or not from 0, stays in the steps, where its cost is known: taking the column out
        # of the prediction would lose it.
        apart = PREFILL not in fitted.confounded and fitted.coefficients[PREFILL].low > 0
        if apart and _remains(without_R := seconds_R - value * prefills_R, seconds_R):
            yield Treatment(fitted, without_R, prefills_R, value)
    yield Treatment(whole, seconds_R, none_R, 0.0)


def _remains(without_R: Floats, seconds_R: Floats) -> bool:
    return bool((without_R > _MIN_REMAINDER * seconds_R).all())


def prefills_of_others(measurement: Measurement) -> float | None:
    """Prefills of other requests per step in a closed loop: each other request starts anew once per output and the time that it
    is not in the batch, except that the first ones are prefilled before any is decoded. None if the output length is
    unknown."""
    if measurement.output_tokens is None:
        return None
    starts = max(0.0, measurement.requests - 1) * measurement.tokens_per_step / measurement.output_tokens
    starts *= (measurement.in_batch or measurement.requests) / measurement.requests
    return starts * (1 - 1 / measurement.requests_per_place) if measurement.requests_per_place else starts


def _known_prefills(measured: Sequence[Measurement]) -> list[float]:
    """Seconds by which a prefill delays the batch: alone, and as part of a step that would have been made without it too."""
    alone_U2 = np.array(_unloaded(measured))
    if not len(alone_U2):
        return []
    times = np.median(alone_U2[:, 0]), np.median(alone_U2[:, 0] - alone_U2[:, 1])
    return [float(time) for time in times if time > 0]


def unloaded_ttft(measured: Sequence[Measurement]) -> float | None:
    """Median TTFT (the lower of two, since first requests warm a server up) without queueing: of one request at a time,
    or measured in isolation. None if there are none."""
    known = _unloaded(measured)
    return float(np.quantile([ttft for ttft, _ in known], 0.5, method="lower")) if known else None


def _unloaded(measured: Sequence[Measurement]) -> list[tuple[float, float]]:
    """TTFT and seconds of a step."""
    return [
        (measurement.ttft, measurement.step_seconds)
        for measurement in measured
        if (measurement.isolated or measurement.requests < _MAX_UNLOADED_BATCH) and measurement.ttft is not None
    ]
