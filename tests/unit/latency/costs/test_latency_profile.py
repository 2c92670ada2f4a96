"""A pair's forward times: measured, kept, read and put together to steps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import UnderstudyError
from pipeline.latency.costs.measure import Grid, measure_profile
from pipeline.latency.costs.profile import Profile
from pipeline.latency.costs.step_costs import read_profile
from pipeline.latency.costs.surface import Surface
from tests.fakes import quiet, tiny_llama

PROFILE = Profile(
    Surface((1, 2), (1, 2, 3), (64,), np.array([[[1.0], [1.1], [1.2]], [[2.0], [2.2], [2.4]]])),
    Surface((1, 2), (1,), (64,), np.array([[[0.1]], [[0.3]]])),
    Surface((1,), (10, 110), (0,), np.array([[[1.0], [2.0]]])),
    {"device": "cpu: here"},
)


def test_a_step_drafts_one_by_one_and_verifies_at_once() -> None:
    """By hand, past the largest batch as well; plain decoding drafts nothing."""
    np.testing.assert_allclose(
        PROFILE.steps(3, 64), [[1.0, 2.0, 3.0], [1.1 + 0.1, 2.2 + 0.3, 3.3 + 0.5], [1.2 + 0.2, 2.4 + 0.6, 3.6 + 1.0]]
    )
    np.testing.assert_allclose(PROFILE.prefills([10, 60]), [1.0, 1.5])


def test_what_is_measured_has_every_point() -> None:
    """Each a time, the draft beside the target."""
    target, draft = (tiny_llama(seed, layers=layers, dtype=torch.float32) for seed, layers in ((1, 2), (2, 1)))

    found = measure_profile(
        target,
        draft,
        32,
        Grid(batches=(1, 2), gammas=2, contexts=(4, 8), prompts=(3, 6), repeats=1),
        about={"pair": "tiny"},
        progress=quiet(),
    )

    assert ((1, 2), (1, 2, 3), (4, 8)) == (found.target.batches, found.target.tokens, found.target.contexts)
    assert (2, 3, 2) == found.target.seconds_BTC.shape
    assert (2, 1, 2) == found.draft.seconds_BTC.shape
    assert (3, 6) == found.prefill.tokens
    assert 2 == found.max_gamma
    assert {"device", "passes", "threads", "dtype", "versions", "processor_share", "pair"} == set(found.about)
    assert (found.steps(4, 6) > 0).all()


def test_a_measurement_beside_other_work_says_so() -> None:
    """Half of the processor's time went elsewhere; where all was its own, or nobody knows, nothing is said."""
    beside = replace(PROFILE, about={"processor_share": 0.5})

    assert 1 == len(beside.notes)
    assert "profiling got 50% of the CPU time" in beside.notes[0]
    assert [] == PROFILE.notes == replace(PROFILE, about={"processor_share": 0.9}).notes


def test_eager_passes_of_a_gpu_are_said_to_be_none_of_an_engine() -> None:
    """On a CPU engines compute eagerly too."""
    (note,) = replace(PROFILE, about={"device": "cuda: H100", "passes": "eager"}).notes
    assert "eager passes" in note
    assert "understudy latency fit" in note
    for about in ({"device": "cpu: x", "passes": "eager"}, {"device": "cuda: H100", "passes": "compiled"}):
        assert [] == replace(PROFILE, about=about).notes


def test_a_target_in_compiled_code_beside_a_draft_in_pytorch_is_said() -> None:
    """As of a head on a CPU: its share of a target pass is none of an engine's."""
    (note,) = replace(PROFILE, about={"device": "cpu: x", "passes": "eager", "unequal_passes": True}).notes
    assert "passes of the target are computed in compiled code here and those of the draft in PyTorch" in note


def test_it_survives_its_file(tmp_path: Path) -> None:
    """Written and read."""
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE.json()))
    again = read_profile(tmp_path / "profile.json")

    np.testing.assert_array_equal(PROFILE.steps(5, 64), again.steps(5, 64))
    assert PROFILE.about == again.about


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": 7},
            "a profile of schema 7, and this version reads schema 1; write it again with `understudy profile`",
        ),
        ({"draft": {}}, "draft: a table of forward times needs"),
        ({"more": 1}, "not a profile; write one with"),
    ],
)
def test_a_file_that_is_no_profile_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Naming it."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.json() | change))
    with pytest.raises(UnderstudyError, match=re.escape(message)) as found:
        read_profile(path)

    assert str(path) in str(found.value)


def test_a_file_that_is_not_there_or_no_json_is_one_line(tmp_path: Path) -> None:
    """No traceback."""
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UnderstudyError, match=r"broken\.json: not valid JSON"):
        read_profile(tmp_path / "broken.json")
    with pytest.raises(UnderstudyError, match=r"absent\.json: No such file"):
        read_profile(tmp_path / "absent.json")
