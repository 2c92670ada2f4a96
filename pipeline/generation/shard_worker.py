"""What a worker needs to generate shards: which target, and with which settings. All of it can be sent to another process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.pair import DeviceMap
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import write_shard
from pipeline.generation.generate import GenerationSettings, attempt_batch, generate_completions
from pipeline.generation.loaded_answers import complete_recorded
from pipeline.generation.logged import LoggedCompletion
from pipeline.generation.sample_test import SampleEvidence
from pipeline.models.devices import choose_device
from pipeline.models.loading import load_model
from pipeline.models.memory_plan import DecodedBatch, require_memory
from pipeline.models.out_of_memory import batch_named


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What all shards of an artifact have in common."""

    target: Path
    dtype: str
    trust_remote_code: bool
    device_map: DeviceMap | None  # of the target's layers; None: on the worker's device
    settings: GenerationSettings
    longest_prompt: int  # tokens
    completions: int  # of the largest shard
    vocabulary: int
    stop_tokens: Sequence[int]
    batch_tokens: int  # the most tokens of a batch of recorded answers, padding included


@dataclass(frozen=True)
class Shard:
    """What is sent of a shard."""

    name: str
    requests: list[CompletionRequest]
    answers: Mapping[int, LoggedCompletion] = field(default_factory=dict)  # recorded ones, by the number of the request


def open_target(work: ShardWork, device: str) -> Callable[[Shard, Path, Callable[[float], None]], None]:
    """Load the target; what is returned completes a shard, by its recorded answers as far as the target can have given them, and
    writes it to a directory. UsageError if it cannot fit with its batch."""
    settings, place = work.settings, choose_device(device)
    rows = min(settings.batch, work.completions)
    batch = DecodedBatch(key="generate.batch", rows=rows, tokens=work.longest_prompt + settings.max_new_tokens)
    require_memory(work.target, work.dtype, place, work.device_map, work.trust_remote_code, batch)
    model = load_model(work.target, work.dtype, place, work.trust_remote_code, work.device_map)
    tokens = (work.vocabulary, work.stop_tokens)

    def make(shard: Shard, out: Path, advance: Callable[[float], None]) -> None:
        requests = shard.requests
        recorded, tested = complete_recorded(
            model, requests, shard.answers, settings, work.vocabulary, work.batch_tokens
        )
        advance(len(recorded) * settings.max_new_tokens)
        others = [number for number in range(len(requests)) if number not in recorded]
        missing = [requests[number] for number in others]
        with batch_named("generate.batch", settings.batch, attempt_batch(model, missing, settings, *tokens)):
            made = generate_completions(model, missing, settings, *tokens, advance) if missing else []
        completions = {**recorded, **dict(zip(others, made, strict=True))}
        facts = sum((tested[number] for number in sorted(tested)), start=SampleEvidence()).facts()
        write_shard(out, shard.name, [completions[number] for number in range(len(requests))], facts)

    return make
