"""What two examinations must have in common."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.kinds import EAGLE3, PLAIN, Kind
from pipeline.examination.on_completions import Settings, conditions_of


def test_the_draft_length_is_a_condition_of_a_head_alone() -> None:
    """Its rate is over the tokens that it drafts at that length; that of a model is over all."""
    made = {"dtype": "float32", "sampling": {}}
    manifest = SimpleNamespace(inputs={"target": "t"}, settings=made, files={})
    completions = cast(Any, SimpleNamespace(key="k", path=Path("k"), manifest=manifest))

    def evaluated(kind: Kind, gamma: int) -> dict[str, Any]:
        settings = Settings(evaluate=EvaluateConfig(gamma=gamma), dtype="float32")
        return conditions_of(completions, settings, kind).evaluate

    assert evaluated(PLAIN, 3) == evaluated(PLAIN, 5)
    assert evaluated(EAGLE3, 3) != evaluated(EAGLE3, 5)
    assert 3 == evaluated(EAGLE3, 3)["gamma"]
