"""What a run says once the corpus is there: recorded answers that were sampled otherwise than `sampling` says."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.running.after_stage import after_stage

AT_07 = {"temperature": 0.7}
Stated = list[tuple[dict[str, float], int]]


def _config(**sampling: float) -> Config:
    raw: dict[str, Any] = {
        "name": "t",
        "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
        "corpus": {"sources": [{"path": "log.jsonl"}]},
        "sampling": sampling,
    }
    return parse_config(raw, "t")


def _corpus(directory: Path, stated: Stated) -> Path:
    manifest = {"stage": "corpus", "key": "k", "provides": {}, "files": {}, "figures": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest | {"notes": {"stated_sampling": stated}}))
    return directory


def test_a_log_at_other_settings_alone_is_refused(tmp_path: Path) -> None:
    """Nothing of it could be used, and the target would answer all prompts again."""
    artifact = _corpus(tmp_path, [(AT_07, 300), ({"temperature": 0.7, "top_p": 0.9}, 7)])
    with pytest.raises(UsageError) as caught:
        after_stage("corpus", _config(), artifact)
    assert (
        "none of 307 recorded answers can be used: 300 were sampled with temperature 0.7, 7 were sampled with temperature 0.7, "
        "top_p 0.9, and `sampling` is temperature 1, top_k 0, top_p 1, min_p 0; set it to what the deployment used"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "sampling", "expected"),
    [
        ([(AT_07, 300)], {"temperature": 0.7}, []),
        ([({}, 300)], {"temperature": 0.7}, []),
        ([], {}, []),
        ([({"temperature": 0.0, "top_p": 0.9}, 3)], {"temperature": 0.0}, []),
        ([(AT_07, 3), ({}, 9)], {}, ["3 of 12 recorded answers are not used", "3 were sampled with temperature 0.7"]),
    ],
)
def test_what_can_be_used_is_said(
    tmp_path: Path, stated: Stated, sampling: dict[str, float], expected: list[str]
) -> None:
    """A row that states nothing is of the deployment; at temperature 0 the filters have no effect; the others are counted."""
    said = after_stage("corpus", _config(**sampling), _corpus(tmp_path, stated)).notes
    assert bool(expected) == bool(said)
    for part in expected:
        assert part in said[0]
