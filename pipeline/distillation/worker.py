"""One process of a training: takes part in it as its task file says."""

from collections.abc import Callable
from pathlib import Path

from pipeline.distillation.processes import is_first, join, leave
from pipeline.distillation.training import Training
from pipeline.distillation.training_data import training_data
from pipeline.distillation.training_task import TrainingTask
from pipeline.models.stored_pair import read_pair
from pipeline.progress import Progress
from pipeline.store.parsing import format_of


class _Sent(Progress):
    """Lines for the process that started this one; of the first worker only."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(terminal=False)
        self._send = send

    def line(self, text: str) -> None:
        if is_first():
            self._send(text)


def work(path: Path, send: Callable[[str], None]) -> None:
    """Train, with the others of the launch. Files and lines, which it sends, are the first process's."""
    task, progress = format_of(TrainingTask).read(path), _Sent(send)
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
