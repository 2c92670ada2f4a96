"""Step costs of a server from measurements: linear and piecewise models."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.measurements import Measurement

Step = Callable[[float, float], float]


def _linear(requests: float, gamma: float) -> float:
    return 0.02 + 0.003 * gamma + requests * (0.001 + 0.0002 * gamma)


def _saturating(requests: float, gamma: float) -> float:
    """A machine that becomes compute-bound above 16 tokens."""
    return _linear(requests, gamma) * (1 + 0.4 * max(0.0, np.log2(requests * (gamma + 1) / 16)))


def _draft_saturating(requests: float, gamma: float) -> float:
    """A draft pass with constant time up to 16 requests; the target pass is linear."""
    return 0.02 + 0.0005 * requests * (gamma + 1) + gamma * (0.003 + 0.001 * max(0.0, requests - 16))


def _tiled(requests: float, gamma: float) -> float:
    """A target pass in tiles of 16 tokens."""
    return _linear(requests, gamma) + 0.03 * np.ceil(requests * (gamma + 1) / 16)


def _bookkeeping(requests: float, gamma: float) -> float:
    """A server with a fixed cost of speculation per step and per request."""
    late = 0.01 * max(0.0, np.log2(requests * (gamma + 1) / 16))
    return _linear(requests, gamma) + (0.02 + 0.004 * requests) * (gamma > 0) + late


def _sweep(step: Step, tokens: float | None = None) -> list[Measurement]:
    return [
        Measurement(
            where="here",
            requests=requests,
            gamma=gamma,
            tokens_per_step=(1 + gamma) ** 0.5,
            step_seconds=step(requests, gamma),
            output_tokens=tokens,
            ttft=0.05 * requests,
        )
        for requests, gamma in product((1, 2, 4, 8, 16, 32), (0, 1, 3, 5))
    ]


@cache
def _fitted(step: Step) -> FittedCosts:
    return fit_measurements(_sweep(step))


def test_linear_costs_stay_linear() -> None:
    """No piecewise model is used, and extrapolation is linear. Without output lengths prefills stay in the steps, or they would
    be counted twice."""
    found = _fitted(_linear)

    assert found.piecewise is None
    np.testing.assert_allclose(found.steps(40, 100, 6)[6, 39], _linear(40, 6))
    assert (5, 32) == (found.max_gamma, found.max_requests)
    assert found.covers(32, 5, 100)
    assert not found.covers(33, 5, 100)
    assert 0.0 == found.prefill


@pytest.mark.parametrize(("step", "error"), [(_saturating, 0.03), (_draft_saturating, 0.01), (_tiled, 0.03)])
def test_nonlinear_costs_use_the_piecewise_model(step: Step, error: float) -> None:
    """Its error is below the linear one, at measured points and between; both errors are stored."""
    found = _fitted(step)

    requests, gamma = (one.ravel() for one in np.meshgrid([1, 3, 6, 12, 24, 32], [0, 1, 2, 4, 5]))
    true = np.array([step(*place) for place in zip(requests, gamma, strict=True)])
    assert np.abs(found.step_seconds(requests, gamma) / true - 1).mean() < error
    assert np.abs(found.costs.step_seconds(requests, gamma) / true - 1).mean() > 0.06
    assert found.leave_one_out.chosen < 0.5 * found.leave_one_out.linear
    assert found.costs.mape > 0.05


def test_it_says_whether_plain_decoding_was_measured() -> None:
    """It is the baseline of the speedup."""
    assert _fitted(_linear).plain
    assert not _drafts_alone().plain


@cache
def _drafts_alone() -> FittedCosts:
    """Without plain decoding, with isolated TTFT."""
    return fit_measurements([replace(one, isolated=True, ttft=0.04) for one in _sweep(_saturating) if one.gamma])


def test_it_survives_its_file() -> None:
    """Written and read back: every form, infinite intervals, prefills, limits, errors, whether plain decoding was measured."""
    for found in (*map(_fitted, (_linear, _saturating, _draft_saturating, _tiled)), _drafts_alone()):
        assert found == fitted_costs_from_json(json.loads(json.dumps(found.json(), allow_nan=False)), "costs.json")


def test_a_file_that_holds_no_costs_is_one_line() -> None:
    """Naming it."""
    whole = _fitted(_linear).json()
    with pytest.raises(UsageError, match=r"costs\.json: not a costs file of schema 7"):
        fitted_costs_from_json(whole | {"schema": 4}, "costs.json")
    with pytest.raises(UsageError, match=r"costs\.json: invalid costs file"):
        fitted_costs_from_json(whole | {"costs": {}}, "costs.json")


def test_chunked_prefills_stay_in_the_steps() -> None:
    """If subtraction leaves too little of a step, step times are used unchanged."""
    found = fit_measurements([replace(one, ttft=2.0) for one in _sweep(_linear, 10.0)])

    np.testing.assert_allclose(found.step_seconds(8, 3), _linear(8, 3))
    assert 0.0 == found.prefill


def test_a_point_measured_twice_counts_once() -> None:
    """With the mean step time."""
    once, twice = _fitted(_saturating), fit_measurements(_sweep(_saturating) * 2)

    np.testing.assert_allclose(twice.step_seconds(12, 3), once.step_seconds(12, 3), rtol=1e-6)


def test_isolated_ttft_is_the_prefill_time() -> None:
    """At any number of requests; the median, so one outlier has no effect."""
    loaded = [replace(one, isolated=True, ttft=0.04) for one in _sweep(_linear) if one.requests > 1]
    held_up = [replace(loaded[0], ttft=1.0), *loaded[1:]]

    assert pytest.approx(0.04) == fit_measurements(loaded).prefill
    assert pytest.approx(0.04) == fit_measurements(held_up).prefill


def test_too_few_points_use_the_linear_model() -> None:
    """Four points do not determine a piecewise model."""
    found = fit_measurements([one for one in _sweep(_saturating) if one.requests in (1, 32) and one.gamma in (0, 5)])

    assert found.piecewise is None
    assert found.leave_one_out is None
    assert "unknown" == found.accuracy.short


def test_leave_one_out_errors_are_out_of_sample() -> None:
    """With noise they exceed the error of the fit."""
    random = np.random.default_rng(0)
    found = fit_measurements(
        [replace(one, step_seconds=one.step_seconds * random.uniform(0.8, 1.2)) for one in _sweep(_linear)]
    )

    assert found.leave_one_out.linear > 1.1 * found.costs.mape


def test_fixed_costs_of_speculation_are_fitted() -> None:
    """A part per step and a part per request, if gamma > 0."""
    found = fit_measurements(_sweep(_bookkeeping))
    places = product((3, 12, 24, 32), (0, 1, 2, 5))
    errors = [float(found.step_seconds(*place)) / _bookkeeping(*place) - 1 for place in places]

    assert np.abs(errors).mean() < 0.02


def test_a_file_of_an_older_schema_is_read() -> None:
    """Without the error at the edge, which is unknown then beyond the measured loads, and without powers."""
    found = _fitted(_saturating)
    raw = found.json() | {"schema": 6}
    del raw["edge"], raw["piecewise"]["powers"]
    old = fitted_costs_from_json(raw, "costs.json")

    assert found.edge is not None
    assert old.edge is None
    assert old.accuracy == old.accuracy_at(3, 32) == found.accuracy
    assert old.accuracy_at(3, 33).left_out is None
    assert replace(found, edge=None) == old
