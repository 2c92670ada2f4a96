"""Linear step costs from measured step times."""

import re

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.fit import Experts, fit_costs

TRUE = {"verify": 0.02, "draft": 0.003, "verify_each": 0.0008, "draft_each": 0.0002}
BATCH_R, GAMMA_R = (one.ravel() for one in np.meshgrid([1, 2, 4, 8, 16], [0, 1, 3, 5], indexing="ij"))


def _steps(batch_R: np.ndarray, gamma_R: np.ndarray) -> np.ndarray:
    return TRUE["verify"] + gamma_R * TRUE["draft"] + batch_R * (TRUE["verify_each"] + gamma_R * TRUE["draft_each"])


def test_exact_measurements_give_back_their_costs() -> None:
    """With intervals of width 0 and exact predictions."""
    found = fit_costs(BATCH_R, GAMMA_R, _steps(BATCH_R, GAMMA_R))

    for name, value in TRUE.items():
        assert pytest.approx(value, rel=1e-6) == found.coefficients[name].value
        assert pytest.approx(value, rel=1e-4) == found.coefficients[name].high
    assert pytest.approx(_steps(np.array(32), np.array(8))) == found.step_seconds(32, 8)
    assert pytest.approx(0, abs=1e-9) == found.mape
    assert pytest.approx(1) == found.r2
    assert () == found.confounded


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """About 95% of 400 noisy sweeps for each cost; fewer than 355 (89%) has a probability below 1e-6."""
    random, within = np.random.default_rng(0), dict.fromkeys(TRUE, 0)
    for _ in range(400):
        seconds_R = _steps(BATCH_R, GAMMA_R) * (1 + 0.02 * random.standard_normal(len(BATCH_R)))
        found = fit_costs(BATCH_R, GAMMA_R, seconds_R).coefficients
        for name, value in TRUE.items():
            within[name] += found[name].low <= value <= found[name].high

    assert min(within.values()) >= 355


def test_one_draft_length_cannot_tell_drafting_from_verifying() -> None:
    """Their sum is determined."""
    batch_R, gamma_R = np.array([1, 2, 4, 8, 16]), np.full(5, 3)
    found = fit_costs(batch_R, gamma_R, _steps(batch_R, gamma_R))

    assert {"verify", "draft", "verify_each", "draft_each"} == set(found.confounded)
    np.testing.assert_allclose(found.step_seconds(batch_R, 3), _steps(batch_R, gamma_R))


def test_plain_decoding_alone_says_nothing_of_drafts() -> None:
    """Draft costs are reported as not identifiable; the others are right."""
    batch_R = np.array([1, 2, 4, 8])
    found = fit_costs(batch_R, np.zeros(4), _steps(batch_R, np.zeros(4)))

    assert ("draft", "draft_each") == found.confounded
    assert pytest.approx(TRUE["verify_each"]) == found.coefficients["verify_each"].value


def test_expert_costs_follow_the_active_share() -> None:
    """2 of 16: one token activates an eighth, many tokens all; the cost is fitted with the others."""
    experts = Experts(2, 16)
    seconds_R = _steps(BATCH_R, GAMMA_R) + 0.05 * experts.share(BATCH_R * (GAMMA_R + 1))
    found = fit_costs(BATCH_R, GAMMA_R, seconds_R, experts)

    np.testing.assert_allclose(experts.share([1, 2, 1000]), [0.125, 1 - 0.875**2, 1.0])
    assert pytest.approx(0.05, rel=1e-6) == found.coefficients["experts"].value
    np.testing.assert_allclose(found.step_seconds(BATCH_R, GAMMA_R), seconds_R)


@pytest.mark.parametrize(
    ("batch", "gamma", "seconds", "message"),
    [
        ([4, 4, 4, 4], [3, 3, 3, 3], [1, 2, 3, 4], "all 4 measurements have the same number of requests"),
        ([1, 2, 4, 8], [0, 1, 2, 3], [1, -2, 3, 4], "measurement 2: -2 s is not a valid step time"),
        ([1, 2, 4, 8], [0, 1, 2, 3], [1, 2, float("nan"), 4], "measurement 3: nan s is not a valid step time"),
        ([1, 0, 4, 8], [0, 1, 2, 3], [1, 2, 3, 4], "measurement 2: 0 requests at draft length 1"),
        ([1, 2, 2], [0, 0, 1], [1, 2, 3], "3 measurements are too few for 4 costs"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    batch: list[int], gamma: list[int], seconds: list[float], message: str
) -> None:
    """Names the measurement, or what is missing."""
    with pytest.raises(UsageError, match=re.escape(message)):
        fit_costs(batch, gamma, seconds)
