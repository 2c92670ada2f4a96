"""Models whose layers lie on several devices, in host memory or on disk (a `device_map`). Does not load any.

accelerate moves activations between the devices, and weights of host memory and disk to the device that computes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pipeline.errors import UsageError

_OFFLOADED = ("cpu", "disk")


def places(model: Any) -> set[int | str]:
    """The places of a loaded model's layers, as its `device_map` names them; empty for a model without one."""
    return set((getattr(model, "hf_device_map", None) or {}).values())


def is_dispatched(model: Any) -> bool:
    """Whether only the model's own forward brings weights and activations together."""
    return len(places(model)) > 1 or "disk" in places(model)


def input_device(model: Any) -> torch.device:
    """The device for a model's token ids, where its logits are returned too. The first weights of a dispatched model may have no
    device at all."""
    if not is_dispatched(model):
        device: torch.device = model.device
        return device
    computing = [place for place in model.hf_device_map.values() if place not in _OFFLOADED]
    return torch.device(computing[0] if computing else "cpu")


def check_covers(device_map: Mapping[str, int | str], parameters: Iterable[str]) -> None:
    """UsageError naming the first of a model's parameters that the map gives no place: transformers would leave it in host
    memory, where no other layer finds it."""
    for name in parameters:
        if not any(place in ("", name) or name.startswith(f"{place}.") for place in device_map):
            raise UsageError(
                f"pair.target.device_map: it has no place for {name}; add it or a module that holds it, or set the map to auto"
            )
