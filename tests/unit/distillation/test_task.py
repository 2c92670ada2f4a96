"""What a training reads of the completions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pipeline.config.distill import DistillConfig
from pipeline.config.generate import SamplingConfig
from pipeline.distillation.task import training_data
from pipeline.generation.completion_store import write_shard
from pipeline.generation.segment_files import write_segments
from pipeline.generation.stored_completions import StoredCompletions, distinct
from tests.fakes import stored_completion


def test_a_part_that_lacks_a_segment_is_trained(tmp_path: Path) -> None:
    """On a learning curve a token weighs what it does in the whole; one completion has both segments, and is in no small part."""
    write_shard(tmp_path, "shard-00000", [stored_completion([1], [2, 3], name=f"p{number}") for number in range(10)])
    labels = np.zeros(20, np.uint8)
    labels[-1] = 1
    write_segments(tmp_path, "shard-00000", ("answer", "tool_call"), labels)
    settings = _settings(DistillConfig(segment_shares={"tool_call": 0.2}))
    whole, *parts = [training_data(tmp_path, settings, share) for share in (None, 0.1, 0.5)]
    assert [10, 1, 5] == [len(one.rows) for one in (whole, *parts)]
    assert whole.weights["tool_call"] > whole.weights["answer"]
    assert [whole.weights] * 2 == [one.weights for one in parts]


def test_rows_that_are_drawn_again_are_not_read(tmp_path: Path) -> None:
    """Shares of domains and parts choose places of the store."""
    rows = [stored_completion([1], [2, 3], name=f"p{n}", domain="chat" if n % 4 else "code") for n in range(20)]
    write_shard(tmp_path, "shard-00000", rows)
    settings = _settings(DistillConfig(domain_shares={"code": 0.5, "chat": 0.5}))
    for share in (None, 0.5):
        data = training_data(tmp_path, settings, share)
        assert isinstance(data.rows, StoredCompletions)
        assert len(data.rows) == 2 * sum(item.domain == "code" for item in data.rows)
        assert distinct(data.rows, "id") <= distinct(data.train, "id")


def test_prompts_are_those_of_the_artifact_that_is_named(tmp_path: Path) -> None:
    """With the weight of the config; a training without them has none."""
    (tmp_path / "prompts").mkdir()
    write_shard(tmp_path, "shard-00000", [stored_completion([1, 2, 3], [4], name=f"p{number}") for number in range(4)])
    write_shard(tmp_path / "prompts", "shard-00000", [stored_completion([1], [2, 3], name="p2")])
    settings = _settings(DistillConfig(prompt_weight=0.25))
    data = training_data(tmp_path, settings, 0.5, tmp_path / "prompts")
    assert data.prompts is not None
    assert (1, 0.25) == (len(data.prompts.scored), data.prompts.weight)
    assert training_data(tmp_path, settings).prompts is None


def _settings(distill: DistillConfig) -> Any:
    return cast(Any, SimpleNamespace(distill=distill, seed=0, sampling=SamplingConfig()))
