"""How measured steps are freed of the prefills of other requests. Pure.

An engine that runs a whole prefill between two steps makes the steps around it longer; one that slices prefills into the steps
(chunked prefill) spreads them. The measurements do not say which, so each treatment is tried, and the steps that the others
predict decide (`fitted.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.fit import PREFILL, Experts, LinearCosts, fit_costs
from pipeline.latency.costs.measurements import Measurement

Floats = NDArray[np.float64]

_MAX_UNLOADED_BATCH = 1.5  # concurrent requests below which TTFT is the prefill time
_MIN_REMAINDER = 0.2  # least share of a step that must remain after prefills are subtracted


@dataclass(frozen=True)
class Treatment:
    """Steps without prefills, and what was taken out: `prefill` seconds for each of `prefills_R`."""

    costs: LinearCosts  # fitted to the steps
    seconds_R: Floats
    prefills_R: Floats
    prefill: float


def treatments(measured: Sequence[Measurement], experts: Experts | None) -> Iterator[Treatment]:
    """In order of preference: a known prefill time is subtracted; a fitted one; none."""
    requests_R = np.array([one.requests for one in measured])
    gamma_R = np.array([one.gamma for one in measured])
    seconds_R = np.array([one.step_seconds for one in measured])
    none_R = np.zeros(len(measured))
    whole = fit_costs(requests_R, gamma_R, seconds_R, experts)
    prefill, prefills_R = unloaded_ttft(measured), _prefills(measured)
    if all(one.isolated for one in measured):
        yield Treatment(whole, seconds_R, none_R, prefill or 0.0)
        return
    if prefills_R is not None and prefills_R.any():
        if prefill is not None and _remains(without_R := seconds_R - prefill * prefills_R, seconds_R):
            yield Treatment(fit_costs(requests_R, gamma_R, without_R, experts), without_R, prefills_R, prefill)
        fitted = fit_costs(requests_R, gamma_R, seconds_R, experts, prefills_R)
        value = fitted.coefficients[PREFILL].value
        # A prefill that cannot be told apart stays in the steps, where its cost is known: taking the column out of the
        # prediction would lose it.
        known = PREFILL not in fitted.confounded and value > 0
        if known and _remains(without_R := seconds_R - value * prefills_R, seconds_R):
            yield Treatment(fitted, without_R, prefills_R, value)
    yield Treatment(whole, seconds_R, none_R, 0.0)


def _remains(without_R: Floats, seconds_R: Floats) -> bool:
    return bool((without_R > _MIN_REMAINDER * seconds_R).all())


def _prefills(measured: Sequence[Measurement]) -> Floats | None:
    """Prefills of other requests per step in a closed loop: each other request starts anew once per output length. None if
    output lengths are unknown."""
    if any(one.output_tokens is None for one in measured):
        return None
    return np.array([max(0.0, one.requests - 1) * one.tokens_per_step / (one.output_tokens or 1.0) for one in measured])


def unloaded_ttft(measured: Sequence[Measurement]) -> float | None:
    """Median TTFT of measurements without queueing: one request at a time, or measured in isolation. None if there are none."""
    known = [
        one.ttft for one in measured if (one.isolated or one.requests < _MAX_UNLOADED_BATCH) and one.ttft is not None
    ]
    return float(np.median(known)) if known else None
