"""Which device each process of a machine gets. Starts nothing on a device."""


def devices_of(device: str, processes: int) -> list[str]:
    """`auto` and `cuda` mean the GPUs one after another, again from the first where there are more processes; any other device
    is the device of all."""
    gpus = _gpus() if device in ("auto", "cuda") else 0
    return [f"cuda:{number % gpus}" if gpus else device for number in range(processes)]


def _gpus() -> int:
    import torch  # where a device is named it is not needed

    return torch.cuda.device_count()
