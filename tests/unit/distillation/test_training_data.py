"""What a training reads of the completions."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipeline.config.distill import DistillConfig
from pipeline.config.generate import SamplingConfig
from pipeline.distillation import training_data as module
from pipeline.distillation.training_data import training_data
from tests.fakes import stored_completion


def test_a_part_that_lacks_a_segment_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a learning curve a token weighs what it does in the whole; one completion has both segments, and is in no small part."""
    plain = [stored_completion([1], [2, 3], name=f"p{number}") for number in range(10)]
    answers = [replace(item, segments=np.zeros(2, np.uint8), segment_names=("answer", "tool_call")) for item in plain]
    calls = [replace(answers[-1], segments=np.array([0, 1], np.uint8))]
    monkeypatch.setattr(module, "read_completions", lambda *asked: [*answers[:-1], *calls])
    distill = DistillConfig(segment_shares={"tool_call": 0.2})
    settings = cast(Any, SimpleNamespace(distill=distill, seed=0, sampling=SamplingConfig()))
    whole, *parts = [training_data(tmp_path, settings, share) for share in (None, 0.1, 0.5)]
    assert [10, 1, 5] == [len(one.rows) for one in (whole, *parts)]
    assert whole.weights["tool_call"] > whole.weights["answer"]
    assert [whole.weights] * 2 == [one.weights for one in parts]
