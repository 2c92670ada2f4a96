"""Requests as an examination found them, and the server they meet."""

import numpy as np
import pytest

from pipeline.acceptance.profile import Completions, count_completions
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.latency.profile import Profile
from pipeline.latency.surface import Surface
from pipeline.latency.workload import Workload, examined_workload, server

PROFILE = Profile(
    Surface((1, 2), (1, 3), (64,), np.array([[[1.0], [1.2]], [[2.0], [2.4]]])),
    Surface((1, 2), (1,), (64,), np.array([[[0.1]], [[0.3]]])),
    Surface((1,), (10, 110), (0,), np.array([[[1.0], [2.0]]])),
    {},
)


@pytest.fixture
def workload() -> Workload:
    """Two answers of 9 and 5 tokens: of the first every draft token is accepted, of the second none."""
    completions = Completions(
        ["a", "b"], ["x", "x"], np.array([10, 110]), np.array([9, 5]), [np.zeros(9, bool), np.zeros(5, bool)]
    )
    counts = count_completions(completions, [np.ones(9), np.zeros(5)], 2, CONVENTIONS["user"])
    return examined_workload(counts, CONVENTIONS["user"], 2)


def test_rounds_are_those_of_the_examination(workload: Workload) -> None:
    """The prefill says the first token; then a token a round, or all accepted and one; luck has no part here."""
    np.testing.assert_allclose(workload.rounds_GW, [[8, 4], [4, 4], [3, 4]])
    np.testing.assert_allclose(workload.variance_GW, 0.0, atol=1e-12)
    np.testing.assert_allclose(workload.rounds_G, [6, 4, 3.5])
    np.testing.assert_allclose(workload.sizes(2).mean_W, [3 / 3.5, 4 / 3.5])
    assert (10 + 4.5 + 110 + 2.5) / 2 == workload.context


def test_a_server_takes_the_length_of_its_batch(workload: Workload) -> None:
    """Two tokens drafted alone, none in company: rounds times the step, and the mean prefill."""
    found = server(workload, PROFILE, np.array([2, 0]))

    np.testing.assert_allclose(found.step_N, [1.2 + 2 * 0.1, 2.0])
    np.testing.assert_allclose(found.service_N, [3.5 * 1.4, 6 * 2.0])
    assert 1.5 == found.prefill
