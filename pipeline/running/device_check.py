"""Whether the device of a config is on this machine, before anything is built for it."""

from collections.abc import Sequence

from pipeline.running.stage_list import Stage


def require_device(device: str, stages: Sequence[Stage]) -> None:
    """UsageError where one of the stages that are asked for uses the device, and it is not there. Only a GPU can be missing, so
    for another device torch is not imported."""
    if device.startswith("cuda") and any(stage.uses_device for stage in stages):
        from pipeline.models.devices import choose_device

        choose_device(device)
