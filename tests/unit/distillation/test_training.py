"""What all trainings of a run share."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.loading import parse_config
from pipeline.distillation.training import Training
from pipeline.running.jobs import training_settings
from tests.fakes import quiet


def _examiner(**evaluate: Any) -> Any:
    models = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    raw = {"name": "t", "pair": models, "corpus": {"sources": [{"path": "reference"}]}, "evaluate": evaluate}
    pair = cast(Any, SimpleNamespace(vocabulary=8, tokenizer=Path("nowhere")))
    settings = training_settings(parse_config(raw, "test"))
    return Training(settings, pair, [], quiet(), "cpu", False).examiner


@pytest.mark.parametrize("evaluate", [{"gamma": 2}, {"convention": "transformers"}, {"max_gamma": 5}], ids=str)
def test_checkpoints_are_compared_by_a_measure_of_their_own(evaluate: dict[str, Any]) -> None:
    """Settings that count the examination otherwise enter no training's key, so they must not choose the kept step."""
    expected, found = _examiner(), _examiner(**evaluate)

    assert expected.settings == found.settings
    assert expected.counting == found.counting
    assert 5 == found.settings.gamma
