"""The files of one phase of a training: checkpoints that a killed run resumes from, and the best weights so far.

They are the same whether the model is divided among processes or not, and whatever the number of processes. Functions that read
or write weights are called by every process; the first one writes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from pipeline.config.distill import DistillConfig
from pipeline.distillation.processes import is_first
from pipeline.distillation.sharding import part, part_of_state, whole, whole_state
from pipeline.distillation.training_log import best_step, out_of_patience
from pipeline.store.atomic import replacing
from pipeline.store.own_files import reads_own_files

_COMPLETE = "checkpoint_complete"  # written last: a checkpoint without it is incomplete
_WEIGHTS = "weights.safetensors"


def mark_complete(work: Path, step: int) -> None:
    """Every file of the checkpoint is written."""
    (work / f"checkpoint-{step}" / _COMPLETE).touch()


def last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint."""
    return max((path.parent for path in work.glob(f"checkpoint-*/{_COMPLETE}")), key=step_of, default=None)


def is_finished(checkpoint: Path, settings: DistillConfig) -> bool:
    """Whether the run was finished at `checkpoint`."""
    return step_of(checkpoint) >= settings.max_steps or out_of_patience(history_of(checkpoint), settings)


def history_of(checkpoint: Path) -> list[dict[str, Any]]:
    """The log up to `checkpoint`."""
    history: list[dict[str, Any]] = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).log_history
    return history


def keep_best(model: Any, work: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the weights of `model` after its examination if they are the best so far, and delete those that are no longer the
    best, except those that the last checkpoint refers to."""
    step, best = max(entry["step"] for entry in history), best_step(history)
    if best == step:
        _write_weights(model, _best_file(work, step))
    if not is_first():
        return
    checkpoint, needed = last_checkpoint(work), {best}
    needed |= {0} if checkpoint is None else {best_step(history_of(checkpoint))}
    for path in work.glob("best-*.safetensors"):
        if path not in {_best_file(work, step) for step in needed}:
            path.unlink()


def read_best(model: Any, work: Path, history: Sequence[dict[str, Any]]) -> None:
    """Give `model` its best weights."""
    _read_weights(model, _best_file(work, best_step(history)))


def write_model(model: Any, checkpoint: Path) -> None:
    """Write the weights that are trained."""
    _write_weights(model, checkpoint / _WEIGHTS)


def read_model(model: Any, checkpoint: Path) -> None:
    """Give `model` the weights of a checkpoint."""
    _read_weights(model, checkpoint / _WEIGHTS)


def write_optimizer(optimizer: Any, scheduler: Any, checkpoint: Path) -> None:
    """Write the states of an optimizer and of its learning rate."""
    state = whole_state(optimizer.state_dict())
    if is_first():
        torch.save(state, checkpoint / OPTIMIZER_NAME)
        torch.save(scheduler.state_dict(), checkpoint / SCHEDULER_NAME)


@reads_own_files("a checkpoint of the training that goes on")
def read_optimizer(optimizer: Any, scheduler: Any, checkpoint: Path) -> None:
    """Give them the states of a checkpoint. The file is mapped, so that a process reads no more than its part at once."""
    state = torch.load(checkpoint / OPTIMIZER_NAME, map_location="cpu", weights_only=True, mmap=True)
    optimizer.load_state_dict(part_of_state(state, optimizer))
    scheduler.load_state_dict(torch.load(checkpoint / SCHEDULER_NAME, weights_only=True))


def _best_file(work: Path, step: int) -> Path:
    return work / f"best-{step}.safetensors"


def _write_weights(model: Any, path: Path) -> None:
    weights = dict[str, torch.Tensor]()
    for name, weight in _trained(model):
        whole_weight = whole(weight)
        if is_first():
            weights[name] = whole_weight.cpu().contiguous()
    if is_first():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            save_file(weights, partial)


@reads_own_files("a checkpoint of the training that goes on")
def _read_weights(model: Any, path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        for name, weight in _trained(model):
            weight.copy_(part(file.get_tensor(name), weight))


def _trained(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that a training changes; those that are one only once."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name, weight.detach()


def step_of(checkpoint: Path) -> int:
    """Optimiser steps that were done when it was written."""
    return int(checkpoint.name.rpartition("-")[2])
