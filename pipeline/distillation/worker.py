"""One process of a training: takes part in it as its task file says."""

from pathlib import Path

from pipeline.distillation.processes import is_first, join, leave
from pipeline.distillation.training import Training
from pipeline.distillation.training_data import training_data
from pipeline.distillation.training_task import TrainingTask
from pipeline.models.stored_pair import read_pair
from pipeline.progress import Progress, say
from pipeline.store.parsing import format_of


class _ToStarter(Progress):
    """Lines on stdout, for the process that started this one; of the first worker only."""

    def __init__(self) -> None:
        super().__init__(terminal=False)

    def line(self, text: str) -> None:
        if is_first():
            say(text)


def work(path: Path) -> None:
    """Train, with the others of the launch. Files and lines are the first process's."""
    task, progress = format_of(TrainingTask).read(path), _ToStarter()
    device = join(task.device)
    data = training_data(task.completions, task.settings, task.share, task.prompts)
    training = Training(
        task.settings,
        read_pair(task.pair, task.places),
        data.dev,
        progress,
        str(device),
        task.trust_remote_code,
        shard=task.shard,
        prompts=data.prompts,
    )
    training.require_memory()
    training.run_phases(data.rows, data.weights, task.work)
    leave()
