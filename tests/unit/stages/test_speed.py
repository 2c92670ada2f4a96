"""The stage that measures tokens per second."""

from pathlib import Path
from typing import Any

import pytest
import torch

import stages.speed
from pipeline.config.loading import load_config
from pipeline.errors import UnderstudyError
from pipeline.speculation.settings import GREEDY, Sampling
from tests.contexts import settings_of, stage_context

CONFIGS = Path(__file__).parents[3] / "configs"


def test_a_measurement_without_memory_says_how_to_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named."""

    def without_memory(*_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(stages.speed, "_measure", without_memory)
    context = stage_context(load_config(CONFIGS / "smoke.yaml"), "speed", tmp_path, tmp_path / "out")
    with pytest.raises(UnderstudyError, match=r"^tokens per second: out of memory; set evaluate\.speed\.turns to 0"):
        stages.speed.run(context)


@pytest.mark.parametrize(("drafting", "expected"), [("greedy", GREEDY), ("probabilistic", Sampling(0.7))])
def test_the_draft_is_sampled_as_the_engine_does(drafting: str, expected: Sampling) -> None:
    """Greedily, or at the deployment's settings."""
    changed = ("sampling.temperature=0.7", f"evaluate.draft_sampling={drafting}")
    assert expected == settings_of(load_config(CONFIGS / "smoke.yaml", changed), "speed").drafting
