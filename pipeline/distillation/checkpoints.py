"""The files of one phase of a training: checkpoints that a killed run resumes from, and the best weights so far."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from pipeline.config.distill import DistillConfig
from pipeline.distillation.training_log import best_step, out_of_patience
from pipeline.store.atomic import replacing

_COMPLETE = "checkpoint_complete"  # written last: a checkpoint without it is incomplete


def mark_complete(work: Path, step: int) -> None:
    """Every file of the checkpoint is written."""
    (work / f"checkpoint-{step}" / _COMPLETE).touch()


def last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint."""
    return max((path.parent for path in work.glob(f"checkpoint-*/{_COMPLETE}")), key=_step, default=None)


def is_finished(checkpoint: Path, settings: DistillConfig) -> bool:
    """Whether the run was finished at `checkpoint`."""
    return _step(checkpoint) >= settings.max_steps or out_of_patience(history_of(checkpoint), settings)


def history_of(checkpoint: Path) -> list[dict[str, Any]]:
    """The log up to `checkpoint`."""
    history: list[dict[str, Any]] = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).log_history
    return history


def best_file(work: Path, step: int) -> Path:
    return work / f"best-{step}.safetensors"


def keep_best(model: Any, work: Path, history: Sequence[dict[str, Any]]) -> None:
    """After an examination of `model`: write its weights if they are the best so far, and delete those that are no longer the
    best, except those that the last checkpoint refers to."""
    step, best = max(entry["step"] for entry in history), best_step(history)
    if best == step:
        work.mkdir(parents=True, exist_ok=True)
        with replacing(best_file(work, step)) as partial:
            save_model(model, str(partial))
    checkpoint, needed = last_checkpoint(work), {best}
    needed |= {0} if checkpoint is None else {best_step(history_of(checkpoint))}
    for path in work.glob("best-*.safetensors"):
        if path not in {best_file(work, step) for step in needed}:
            path.unlink()


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
