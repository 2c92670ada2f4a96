"""What the processes of a training are told, in a file: where pair and completions lie, the settings, where to work."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.distillation.settings import TrainingSettings
from pipeline.models.places import ModelPlace
from pipeline.store.atomic import replacing
from pipeline.store.own_files import reads_own_files
from pipeline.store.parsing import format_of, stored

FILE = "training_task.json"


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
