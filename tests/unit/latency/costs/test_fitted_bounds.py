"""What is fitted and what a costs file may hold. Each test notices a behaviour that was broken on purpose."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import fitted_costs_from_json
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.piecewise import Terms
from pipeline.latency.costs.repeats import point_numbers

Step = Callable[[float, int], float]


def _m(
    step: Step,
    loads: Sequence[float],
    gammas: Sequence[int],
    tokens: float | None = 100.0,
    ttft: Step | None = None,
) -> list[Measurement]:
    return [
        Measurement(
            where="here",
            requests=n,
            gamma=g,
            tokens_per_step=(1 + g) ** 0.5,
            step_seconds=step(n, g),
            output_tokens=tokens,
            ttft=ttft(n, g) if ttft else None,
        )
        for n, g in product(loads, gammas)
    ]


def _lin(n: float, g: int) -> float:
    return 0.02 + 0.003 * g + n * (0.001 + 0.0002 * g)


def _bent(n: float, g: int) -> float:
    return float(_lin(n, g) * (1 + 0.4 * max(0.0, np.log2(n * (g + 1) / 16))))


@cache
def _file(step: Step) -> dict[str, Any]:
    """The costs file of a sweep."""
    return fit_measurements(_m(step, (1, 2, 4, 8, 16, 32), (0, 1, 3, 5))).json()


def test_prefills_are_taken_out_of_all_steps_or_none() -> None:
    """Rows with drafts do not say how long outputs are: their prefills are in the steps, and must not be counted twice."""
    sweep = _m(
        lambda n, g: _lin(n, g) + 0.03 * (n - 1) * (1 + g) ** 0.5 / 100,
        (1, 2, 4, 8, 16, 32),
        (0, 1, 3, 5),
        ttft=lambda n, g: 0.03,
    )
    found = fit_measurements([replace(one, output_tokens=None) if one.gamma else one for one in sweep])

    assert 0.0 == found.prefill


def test_ttft_less_a_step_goes_before_a_fitted_prefill() -> None:
    """Noise of 0.3% in the steps moves a fitted time by far more than 5%."""
    random = np.random.default_rng(0)
    sweep = _m(
        lambda n, g: (_lin(n, g) + 0.04 * (n - 1) * (1 + g) ** 0.5 / 100) * random.uniform(0.997, 1.003),
        (1, 2, 4, 8, 16, 32),
        (0, 1, 3, 5),
    )
    sweep = [replace(one, ttft=0.04 + one.step_seconds) if one.requests == 1 else one for one in sweep]

    assert pytest.approx(0.04, rel=0.01) == fit_measurements(sweep).prefill


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens_per_step": {"1": 2.5}}, "tokens_per_step must be from 1"),
        ({"batch_share": {"1": 1.5}}, "batch_share must be above 0"),
        ({"batch_share": {"1": 0.0}}, "batch_share must be above 0"),
        ({"measured_requests": {"0": [1, 2], "9": [1, 2]}}, "a draft length is not from 0 to most_gamma"),
        ({"tokens_per_step": {"9": 2.5}}, "a draft length is not from 0 to most_gamma"),
        ({"output_tokens": 0.0}, "output_tokens must be above 0"),
        ({"least_requests": 0}, "least_requests and most_requests"),
        ({"least_requests": 33}, "least_requests and most_requests"),
        ({"most_requests": 0}, "least_requests and most_requests"),
        ({"most_gamma": -1}, "invalid costs file"),
        ({"prefill": np.nan}, "invalid costs file"),
        ({"prefill": -1.0}, "is negative"),
    ],
)
def test_bounds_of_a_file(bad: dict[str, Any], message: str) -> None:
    """Bounds of a file."""
    with pytest.raises(UsageError, match=message):
        fitted_costs_from_json(_file(_lin) | bad, "costs.json")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"breakpoints": [0.0]}, "a breakpoint is not above 0"),
        ({"drops": [8.0] * 201}, "or there are too many"),
        ({"least_tokens": 0.0}, "least_tokens and least_requests must be above 0"),
    ],
)
def test_bounds_of_the_terms_in_a_file(bad: dict[str, Any], message: str) -> None:
    """Bounds of the terms in a file."""
    whole = _file(_bent)
    with pytest.raises(UsageError, match=message):
        fitted_costs_from_json(whole | {"piecewise": whole["piecewise"] | bad}, "costs.json")


@pytest.mark.parametrize(
    "bad",
    [
        {"step_seconds": 1e6},
        {"requests": 1e7},
        {"gamma": 129},
        {"tokens_per_step": 0.5},
        {"ttft": 0.0},
        {"output_tokens": 0.0},
    ],
)
def test_values_that_no_server_has_are_refused(bad: dict[str, Any]) -> None:
    """Values that no server has are refused."""
    sweep = _m(_lin, (1, 2, 4, 8, 16, 32), (0, 1, 3, 5))
    with pytest.raises(UsageError, match=f"here: {next(iter(bad))} is .*, and plausible are"):
        fit_measurements([replace(sweep[0], **bad), *sweep[1:]])


def test_one_request_is_in_the_batch_wholly() -> None:
    """Of 8 requests 6 are in the batch at a time: 6 in it are 8 of the closed loop; one is one."""
    sweep = [
        replace(one, in_batch=0.75 * one.requests if one.requests > 1 else None)
        for one in _m(_lin, (1, 2, 4, 8, 16, 32), (0, 1, 3, 5), None)
    ]
    found = fit_measurements(sweep)

    assert dict.fromkeys((0, 1, 3, 5), 0.75) == found.batch_share
    np.testing.assert_allclose(found.steps(6, 100)[3, [0, 5]], [_lin(1, 3), _lin(8, 3)], rtol=1e-6)
    assert found == fitted_costs_from_json(found.json(), "costs.json")


def test_the_lightest_load_is_rounded_up() -> None:
    """Of an open loop: 1.6 requests on average do not cover one."""
    sweep = _m(_lin, (1.6, 2, 4, 8, 16, 32), (0, 1, 3, 5), None)

    assert 2 == fit_measurements(sweep).min_requests


def test_steps_in_isolation_tell_no_acceptance() -> None:
    """Steps in isolation tell no acceptance."""
    sweep = _m(_lin, (1, 2, 4, 8, 16, 32), (0, 1, 3, 5))

    assert {} == fit_measurements([replace(one, isolated=True) for one in sweep]).tokens_by_gamma
    assert 100.0 == fit_measurements(sweep).output_tokens


def _gpu(n: float, g: int) -> float:
    t = n * (g + 1)
    return 0.020 + 0.002 * g + 1e-5 * t + 1.5e-4 * max(0.0, t - 64)


@pytest.mark.parametrize("seed", range(3))
def test_one_breakpoint_is_enough_for_a_small_noisy_sweep(seed: int) -> None:
    """One breakpoint is enough for a small noisy sweep."""
    random = np.random.default_rng(seed)
    found = fit_measurements(
        _m(lambda n, g: _gpu(n, g) * random.uniform(0.95, 1.05), (1, 4, 16, 64, 256), (0, 3), None)
    )

    assert found.piecewise is not None
    assert (64.0,) == found.piecewise.terms.breakpoints
    assert () == found.piecewise.terms.draft_breakpoints


@pytest.mark.parametrize("seed", [1, 5])
def test_noise_alone_is_no_reason_for_more_terms(seed: int) -> None:
    """Noise alone is no reason for more terms."""
    random = np.random.default_rng(seed)
    found = fit_measurements(
        _m(lambda n, g: _lin(n, g) * random.uniform(0.9, 1.1), (1, 2, 4, 8, 16, 32), (0, 1, 3, 5), None)
    )

    assert found.piecewise is None or () == found.piecewise.terms.draft_breakpoints


def test_pieces_go_on_below_the_least_that_was_measured() -> None:
    """Pieces go on below the least that was measured."""
    columns_TK = Terms((16.0,), (), least_tokens=4.0).columns(np.array([1, 4, 16, 20]), 0, None)
    np.testing.assert_array_equal(columns_TK[:, -2:], [[-3, 0], [0, 0], [12, 0], [12, 4]])


def test_repeats_are_pooled_from_the_lightest() -> None:
    """Within 8% of it and of one draft length: a chain of loads 5% apart is not one point."""
    requests_R, gamma_R = np.array([4, 4.2, 4.4, 4.2, 10]), np.array([0, 0, 0, 1, 0])

    assert [0, 0, 1, 3, 2] == point_numbers(requests_R, gamma_R).tolist()
