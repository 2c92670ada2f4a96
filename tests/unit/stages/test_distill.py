"""distill: what its trainings have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pipeline.config.distill import DistillConfig
from pipeline.generation.completion_store import StoredCompletion
from stages.distill import _parts
from tests.fakes import stored_completion


class _Training:
    """Records what it is asked for."""

    settings = SimpleNamespace(distill=DistillConfig(learning_curve=(0.1, 0.5)), seed=0)

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, float]]] = []

    def run(self, rows: Sequence[StoredCompletion], weights: Mapping[str, float], work: Path) -> tuple[Any, Any]:
        self.asked.append((len(rows), dict(weights)))
        return None, [{"step": 0, "dev_acceptance_rate": 0.5, "dev_tokens_per_target_call": 2.0}]


def test_a_part_that_lacks_a_segment_is_trained(tmp_path: Path) -> None:
    """On a learning curve a token weighs what it does in the whole."""
    train = [stored_completion([1], [2, 3], name=f"p{number}") for number in range(10)]
    rows = [replace(item, segments=np.zeros(2, np.uint8), segment_names=("answer", "tool_call")) for item in train]
    training = _Training()
    _parts(cast(Any, training), rows, {"answer": 0.5, "tool_call": 4.0}, tmp_path)

    assert [(1, {"answer": 0.5, "tool_call": 4.0}), (5, {"answer": 0.5, "tool_call": 4.0})] == training.asked
