"""How many processes train a draft on this machine, by its GPUs."""

import torch

from pipeline.distillation.launchers import Asked, current, process_count


def processes_here(asked: Asked, batch: int, device: torch.device, alone: bool = False) -> int:
    """As `process_count`, with the GPUs that a training on `device` may use."""
    gpus = 0
    if device.type == "cuda":
        gpus = torch.cuda.device_count() if device.index is None else 1
    return process_count(asked, batch, gpus, current(), alone)
