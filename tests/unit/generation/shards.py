"""The worker of shards with a target that is loaded here, for tests of what it stores."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.generation import shard_worker
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.shard_worker import ShardWork, open_target

VOCABULARY, STOP = 32, 1


def shard_work(settings: GenerationSettings, **changes: Any) -> ShardWork:
    """Work for a target whose files are not read, with `changes`."""
    usual = {"target": Path("not read"), "dtype": "float32", "trust_remote_code": False, "device_map": None}
    usual |= {"longest_prompt": 30, "completions": settings.shard, "vocabulary": VOCABULARY, "stop_tokens": [STOP]}
    return ShardWork(**{**usual, "settings": settings, "batch_tokens": 40, **changes})


def open_model(work: ShardWork, model: Any) -> Any:
    """`open_target` of a model in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_worker, "load_model", lambda *_: model)
        patch.setattr(shard_worker, "require_memory", lambda *_: None)
        return open_target(work, "cpu")
