"""What a training depends on, which is in the keys of the drafts that are trained; and a training as its processes are told of
it, in a file. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.distill import DistillConfig
from pipeline.config.evaluate import Drafting
from pipeline.config.generate import SamplingConfig
from pipeline.config.pair import Dtype, NumberFormat
from pipeline.models.places import ModelPlace
from pipeline.store.atomic import replacing
from pipeline.store.own_files import reads_own_files
from pipeline.store.parsing import format_of, stored

TASK = "training_task.json"


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The completions of on-policy rounds, which the draft generates and the target scores. Lengths are in tokens."""

    target_dtype: NumberFormat
    max_new_tokens: int
    distribution_tokens: int  # entries stored for each of the target's distributions
    batch: int  # completions decoded at once
    shard: int  # completions in one file


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of every training of a run."""

    distill: DistillConfig
    rounds: RoundSettings | None  # None: no on-policy rounds
    sampling: SamplingConfig  # of the deployment
    draft_sampling: Drafting  # of the deployment
    batch_tokens: int  # of an examination on dev prompts
    dtype: Dtype  # in which the draft is saved
    seed: int


@reads_own_files("of the process that starts the reader")
@stored(name="task of a training")
class TrainingTask:
    """One training of the base draft, in all its phases."""

    settings: TrainingSettings
    pair: Path  # the artifact
    places: Mapping[str, ModelPlace]
    completions: Path
    share: float | None  # of the train completions; None: all
    prompts: Path | None  # the artifact with the target's distributions over prompts
    work: Path  # of the training: checkpoints
    device: str  # cpu or cuda
    trust_remote_code: bool
    shard: bool = False  # whether the processes divide the draft among them

    def write(self, path: Path) -> None:
        with replacing(path) as partial:
            partial.write_bytes(format_of(TrainingTask).adapter.dump_json(self))
