"""What a stage is given and what it gives back. Knows no stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline.config.root import Config
from pipeline.progress import Progress


@dataclass(frozen=True)
class StageContext:
    """Everything a stage may use."""

    config: Config
    part: str  # which of the stage's artifacts to build: "" or, for example, "int8"
    inputs: Mapping[str, Path]  # by role: a committed artifact, or a path outside the store
    digests: Mapping[str, str]  # by role: the digest that entered the key
    facts: Mapping[str, Any]  # by role: what is known of an outside input, such as the champion's version
    out: Path  # where to write; renamed into the store when the stage returns
    store: Path
    run_id: str
    progress: Progress


@dataclass(frozen=True)
class Outcome:
    """What a stage reports; its files are in `context.out`."""

    figures: Mapping[str, float] = field(default_factory=dict)  # flat, finite: they go to MLflow
    provides: Mapping[str, str] = field(default_factory=dict)  # name -> digest, for stages that depend on a part
    notes: Mapping[str, Any] = field(default_factory=dict)  # what people should see: warnings, differences


class StageFunction(Protocol):
    """`run` of a module in `stages`."""

    def __call__(self, context: StageContext) -> Outcome: ...
