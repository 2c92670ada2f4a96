"""Where memory runs out in a training: the batch that fits, and the accumulation of gradients that makes the same steps of it."""

import heapq
from collections.abc import Callable
from typing import Any

from pipeline.config.distill import DistillConfig
from pipeline.distillation.dataset import PackedCompletions
from pipeline.distillation.processes import count
from pipeline.distillation.sharding import is_divided


def remedy(settings: DistillConfig) -> Callable[[int], str]:
    """What to do where a micro-batch of n rows fits: so many, or as many fewer as divide among the processes. A step of more
    micro-batches has the same rows."""

    def text(rows: int) -> str:
        rows -= rows % count()
        parts, rest = divmod(settings.batch, rows)
        if rest:
            return f"set distill.batch to {rows}"
        accumulation = parts * settings.accumulation
        return f"set distill.batch to {rows} and distill.accumulation to {accumulation}, which trains the same,"

    return text


def otherwise(model: Any) -> str:
    """What to do where no batch fits."""
    if is_divided(model):
        return "train in more processes, or on devices with more memory"
    if count() > 1:
        return "set distill.shard to true, so that the processes divide weights, gradients and optimizer state"
    return "train adapters (distill.lora), or on several GPUs with distill.shard, or use a device with more memory"


def attempt(trainer: Any, documents: PackedCompletions) -> Callable[[int], None]:
    """A function that does a step on the longest n rows, in this process alone. The trainer's weights are spoiled by it. A model
    that is divided cannot be tried alone: then it states only whether each process has a row."""

    def step(rows: int) -> None:
        if rows < count():
            raise MemoryError("fewer rows than processes")
        if is_divided(trainer.model):
            return
        longest = heapq.nlargest(rows, range(len(documents.rows)), key=documents.length)
        # The model itself, not what exchanges gradients with the other processes.
        trainer.training_step(trainer.model, trainer.data_collator([{"row": row} for row in longest]))
        if trainer.optimizer is not None:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

    return step
