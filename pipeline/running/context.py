"""What a stage receives and what it returns. Does not depend on stages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.execution import ExecutionConfig
from pipeline.config.pair import DeviceMap
from pipeline.config.root import Config
from pipeline.config.server import ServerConfig
from pipeline.distillation.settings import TrainingSettings
from pipeline.models.places import Places, model_places
from pipeline.progress import Progress
from pipeline.registry.registry import Registry
from pipeline.running.environment import WorkerFacts
from pipeline.running.jobs import training_settings
from pipeline.running.parts import Share
from pipeline.store.artifacts import Store

S = TypeVar("S", covariant=True)  # the settings of a stage


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a stage uses that is not in its key: it may change the last digits of a figure, never what the figure means."""

    device: str  # auto, cpu, cuda or cuda:N
    trust_remote_code: bool
    target_device_map: DeviceMap | None  # of target and target_before; None: on `device`
    models: Places
    servers: ServerConfig | None  # of the target: endpoints, limits, names of variables; None: it is loaded here
    registry: Registry
    execution: ExecutionConfig  # where parts are made
    training: TrainingSettings  # a step of which is tried at `pair`
    processes: int | Literal["auto"] = 1  # that train a draft
    shard: bool = False  # whether they divide it among them
    batch_tokens: int = EvaluateConfig().batch_tokens  # the most of a batch of answers that the target scores

    def device_map(self, role: str) -> DeviceMap | None:
        """Where the layers of a role's model are placed; None: on `device`."""
        return self.target_device_map if role in ("target", "target_before") else None


def resources_of(config: Config, registry: Registry) -> Resources:
    """The part of a config that enters no key."""
    return Resources(
        device=config.device,
        trust_remote_code=config.pair.trust_remote_code,
        target_device_map=config.pair.target.device_map,
        models=model_places(config.pair),
        servers=config.generate.server if config.generate.is_served else None,
        registry=registry,
        execution=config.execution,
        training=training_settings(config),
        processes=config.distill.processes,
        shard=config.distill.shard,
        batch_tokens=config.evaluate.batch_tokens,
    )


@dataclass(frozen=True, kw_only=True)
class StageContext(Generic[S]):
    """Everything a stage may use."""

    settings: S  # what the artifact's key has, beside the digests
    resources: Resources
    job_id: str  # for messages
    inputs: Mapping[str, Path]  # by name: a committed artifact, or a path outside the store
    digests: Mapping[str, str]  # by name: the digest that entered the key
    facts: Mapping[str, Any]  # by name: facts about an outside input, such as the champion's version
    out: Path  # where to write; renamed into the store when the stage returns
    store: Store
    run_id: str
    progress: Progress
    force_promote: bool = False  # also a draft that was rolled back
    share: Share | None = None  # of the parts: nothing else is made; None: all
    workers: list[WorkerFacts] = field(default_factory=list)  # that have made parts: filled where they are


@dataclass(frozen=True)
class Outcome:
    """What a stage reports; its files are in `context.out`."""

    figures: Mapping[str, float] = field(default_factory=dict)  # flat, finite: they go to MLflow
    # name -> digest, for stages that depend on one file of the artifact only
    provides: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # what people should see: warnings, differences
    refused: str = (
        ""  # why the stage refused the draft: the run ends here, as refused, also when the artifact is reused
    )
    decision: Mapping[str, Any] | None = None  # what the run's record has of a decision


StageRun = Callable[[StageContext[Any]], Outcome]
