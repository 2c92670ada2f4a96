"""What a worker needs to generate shards: which target, and with which settings. All of it can be sent to another process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.pair import DeviceMap
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.generate import GenerationSettings, attempt_batch, generate_shard
from pipeline.models.loading import choose_device, load_model
from pipeline.models.out_of_memory import batch_named


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What all shards of an artifact have in common."""

    target: Path
    dtype: str
    trust_remote_code: bool
    device_map: DeviceMap | None  # of the target's layers; None: on the worker's device
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
    model = load_model(work.target, work.dtype, choose_device(device), work.trust_remote_code, work.device_map)
    settings, tokens = work.settings, (work.vocabulary, work.stop_tokens)

    def make(shard: Shard, out: Path, advance: Callable[[float], None]) -> None:
        attempt = attempt_batch(model, shard.requests, settings, *tokens)
        with batch_named("generate.batch", settings.batch, attempt):
            generate_shard(model, shard.requests, settings, *tokens, out, shard.name, advance)

    return make
