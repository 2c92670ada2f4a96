"""Step times of the champion are of the champion, or of a draft of its shape."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.latency.costs.profile import Profile
from pipeline.latency.costs.surface import Surface
from pipeline.registry.drafts import RegisteredDraft
from pipeline.running.champion_check import require_profile_of

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


def _config(tmp_path: Path, **about: str) -> Config:
    times = Profile(
        Surface((1,), (1, 2, 3, 4, 5, 6), (8,), np.ones((1, 6, 1))),
        Surface((1,), (1,), (8,), np.ones((1, 1, 1))),
        Surface((1,), (8,), (0,), np.ones((1, 1, 1))),
        dict(about),
    )
    (tmp_path / "times.json").write_text(json.dumps(times.json()))
    gate = f"gate={{profile: {{unquantized: {tmp_path}/times.json}}, champion_profile: {tmp_path}/times.json"
    return load_config(SMOKE, [f"{gate}, load: {{requests_per_second: 1, max_batch: 1, context: 64}}}}"])


@pytest.mark.parametrize(
    ("about", "is_refused"),
    [
        ({"draft": "a"}, False),
        ({"draft": "b"}, True),
        ({"draft": "b", "draft_shape": "s"}, False),
        ({"draft": "b", "draft_shape": "t"}, True),
        ({}, False),
    ],
)
def test_step_times_of_another_draft_are_refused(tmp_path: Path, about: dict[str, str], is_refused: bool) -> None:
    """Where the file says whose they are."""
    champion = RegisteredDraft(name="n-draft", version="4", digest="a", shape="s")
    if not is_refused:
        require_profile_of(_config(tmp_path, **about), champion)
        return
    with pytest.raises(
        UsageError, match=r"gate\.champion_profile: .*another draft than the champion, n-draft version 4"
    ):
        require_profile_of(_config(tmp_path, **about), champion)


def test_an_unknown_shape_is_no_equal_one(tmp_path: Path) -> None:
    """Of a version that an earlier Understudy has registered."""
    champion = RegisteredDraft(name="n-draft", version="4", digest="a")
    with pytest.raises(UsageError, match="another draft than the champion"):
        require_profile_of(_config(tmp_path, draft="b", draft_shape=""), champion)
