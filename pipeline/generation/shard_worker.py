"""What a worker needs to generate shards: which target, and with which settings. All of it can be sent to another process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.generate import GenerationSettings, generate_shard
from pipeline.models.loading import choose_device, load_model


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What all shards of an artifact have in common."""

    target: Path
    dtype: str
    trust_remote_code: bool
    settings: GenerationSettings
    vocabulary: int
    stop_tokens: Sequence[int]


@dataclass(frozen=True)
class Shard:
    """What is sent of a shard."""

    name: str
    requests: list[CompletionRequest]


def open_target(work: ShardWork, device: str) -> Callable[[Shard, Path, Callable[[float], None]], None]:
    """Load the target; what is returned generates a shard and writes it to a directory."""
    model = load_model(work.target, work.dtype, choose_device(device), work.trust_remote_code)

    def make(shard: Shard, out: Path, advance: Callable[[float], None]) -> None:
        generate_shard(
            model, shard.requests, work.settings, work.vocabulary, work.stop_tokens, out, shard.name, advance
        )

    return make
