"""What a stage receives and what it returns. Does not depend on stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.progress import Progress
from pipeline.running.tasks import Task


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Everything a stage may use."""

    config: Config
    job_id: str  # for messages
    task: Task | None  # which of the stage's artifacts to build; None where there is one only
    inputs: Mapping[str, Path]  # by name: a committed artifact, or a path outside the store
    digests: Mapping[str, str]  # by name: the digest that entered the key
    facts: Mapping[str, Any]  # by name: facts about an outside input, such as the champion's version
    out: Path  # where to write; renamed into the store when the stage returns
    store: Path
    run_id: str
    progress: Progress
    force_promote: bool = False  # also a draft that was rolled back


@dataclass(frozen=True)
class Outcome:
    """What a stage reports; its files are in `context.out`."""

    figures: Mapping[str, float] = field(default_factory=dict)  # flat, finite: they go to MLflow
    # name -> digest, for stages that depend on one file of the artifact only
    provides: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # what people should see: warnings, differences
    refused: str = ""  # why the stage refused the draft: the run ends here, as refused
