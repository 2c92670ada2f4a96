"""How many processes train a draft on this machine, by its GPUs."""

import torch

from pipeline.distillation.launchers import Asked, current, process_count
from pipeline.models.devices import computes_at_once


def processes_here(asked: Asked, batch: int, device: torch.device, alone: bool = False) -> int:
    """As `process_count`, with the GPUs, or others of torch's accelerators, that a training on `device` may use."""
    gpus = 0
    if not computes_at_once(device):
        gpus = torch.accelerator.device_count() if device.index is None else 1
    return process_count(asked, batch, gpus, current(), alone)
