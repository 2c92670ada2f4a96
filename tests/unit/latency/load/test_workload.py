"""Workloads from examinations, and the server capacity computed from them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.acceptance.baseline import Conditions, ExaminedCounts, baseline_json
from pipeline.acceptance.profile import Completions, count_completions
from pipeline.acceptance.rounds import CONVENTIONS, Acceptance, expected_rounds
from pipeline.acceptance.schema import ExaminedDraft
from pipeline.errors import UsageError
from pipeline.latency.costs.profile import Profile
from pipeline.latency.costs.surface import Surface
from pipeline.latency.load.workload import (
    Workload,
    constant_acceptance_workload,
    examined_workload,
    make_traces,
    read_workload,
    server_capacity,
)
from tests.profiles import profile_json

PROFILE = Profile(
    Surface((1, 2), (1, 3), (64,), np.array([[[1.0], [1.2]], [[2.0], [2.4]]])),
    Surface((1, 2), (1,), (64,), np.array([[[0.1]], [[0.3]]])),
    Surface((1,), (10, 110), (0,), np.array([[[1.0], [2.0]]])),
    {},
)


COUNTS = count_completions(
    Completions(
        ["a", "b"],
        ["a", "b"],
        ["x", "x"],
        np.array([10, 110]),
        np.array([9, 5]),
        [np.zeros(9, bool), np.zeros(5, bool)],
    ),
    [Acceptance([np.ones(9)]), Acceptance([np.zeros(5)])],
    2,
    CONVENTIONS["user"],
)


@pytest.fixture
def workload() -> Workload:
    """Two outputs of 9 and 5 tokens: all draft tokens of the first are accepted, none of the second."""
    return examined_workload(COUNTS, CONVENTIONS["user"], 2)


def test_rounds_are_those_of_the_examination(workload: Workload) -> None:
    """Prefill emits the first token; then one token per round, or gamma + 1; the variance is 0."""
    np.testing.assert_allclose(workload.rounds_GW, [[8, 4], [4, 4], [3, 4]])
    np.testing.assert_allclose(workload.variance_GW, 0.0, atol=1e-12)
    np.testing.assert_allclose(workload.rounds_G, [6, 4, 3.5])
    np.testing.assert_allclose(workload.sizes(2).mean_W, [3 / 3.5, 4 / 3.5])
    assert (10 + 4.5 + 110 + 2.5) / 2 == workload.context


def test_capacity_uses_the_draft_length_of_each_batch_size(workload: Workload) -> None:
    """gamma 2 at batch size 1, gamma 0 at 2: rounds times step time, and the mean prefill."""
    found = server_capacity(workload, PROFILE, np.array([2, 0]))

    np.testing.assert_allclose(found.step_N, [1.2 + 2 * 0.1, 2.0])
    np.testing.assert_allclose(found.service_N, [3.5 * 1.4, 6 * 2.0])
    assert 1.5 == found.prefill


BASELINE = ExaminedCounts(
    counts=COUNTS,
    conditions=Conditions(
        completions="key",
        completions_sha256="content",
        target="target",
        target_dtype="float32",
        sampling={},
        evaluate={"convention": "user", "confidence": 0.95, "max_gamma": 2, "gamma": 2},
        dtype="float32",
    ),
    hardware="cpu",
    digest="draft",
    trained_on=frozenset(),
)


@pytest.mark.parametrize("content", [baseline_json(BASELINE), profile_json(COUNTS)])
def test_an_examination_is_read_from_its_file(content: object, workload: Workload, tmp_path: Path) -> None:
    """Or a baseline, or the directory of the file."""
    (tmp_path / "acceptance.json").write_text(json.dumps(content))

    for path in (tmp_path, tmp_path / "acceptance.json"):
        found = read_workload(path)
        assert "draft" == found.draft_digest
        np.testing.assert_allclose(workload.rounds_GW, found.rounds_GW)
        np.testing.assert_array_equal(workload.prompt_tokens_W, found.prompt_tokens_W)


def test_a_file_without_an_examination_is_one_line(tmp_path: Path) -> None:
    """Names the file."""
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "none.json").write_text(json.dumps(baseline_json(replace(BASELINE, counts=[]))))
    (tmp_path / "old.json").write_text(json.dumps(profile_json(COUNTS) | {"schema": 2}))
    (tmp_path / "torn.json").write_text("{")
    lookup = profile_json(COUNTS, draft=ExaminedDraft("prompt-lookup", 0, 0))
    (tmp_path / "lookup.json").write_text(json.dumps(lookup))
    for name, message in (
        ("lookup", "an examination of prompt-lookup"),
        ("other", "not an examination"),
        ("none", "without prompts"),
        ("old", "the acceptance profile has schema 2"),
        ("torn", "not valid JSON"),
        ("gone", "No such file"),
    ):
        with pytest.raises(UsageError, match=rf"{name}\.json: .*{message}"):
            read_workload(tmp_path / f"{name}.json")


def test_traces_have_the_rounds_of_the_examination() -> None:
    """At the requested draft length; acceptance past the end of the output is 0."""
    workload = constant_acceptance_workload(0.6, 10, 50, 4)
    found = make_traces(workload, 3)

    np.testing.assert_allclose(found.acceptance_WT[0, :50], 0.6, atol=1e-6)
    assert (0, 54) == (found.acceptance_WT[0, 50:].sum(), found.acceptance_WT.shape[1])
    rounds = expected_rounds(found.acceptance_WT[:, :50], found.tokens_W, 3, CONVENTIONS["user"]).rounds_B
    np.testing.assert_allclose(rounds, workload.rounds_GW[3])
