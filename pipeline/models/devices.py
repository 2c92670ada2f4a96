"""Devices: which one a config means, how it rounds, and how the host works with it without waiting.

A device other than the CPU works through a queue while the host goes on. The host waits where it reads a result, where it sends
data from memory that may be swapped, and where it asks. Loops wait once a round or step, for the result.
"""

import platform
from collections.abc import Sequence
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any

import torch
from numpy.typing import NDArray

from pipeline.errors import UsageError

_WITHOUT_FLOAT64 = ("mps", "xpu")  # some of the latter


def choose_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the GPU if there is one, else the CPU. UsageError if it is not available."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None or accelerator.type in _WITHOUT_FLOAT64 else accelerator
    try:
        device = torch.device(name)
        if reason := _unusable(device):
            raise RuntimeError(reason)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device = '{name}' cannot be used here: {str(error).splitlines()[0]}; choose another, such as cpu"
        ) from None
    return device


def _unusable(device: torch.device) -> str | None:
    """Why the device cannot be used, where torch would state it later or in other words; None for others."""
    if device.type == "mps":
        return "Apple's GPUs have no float64, which decoding computes in"
    if device.type != "cuda" or (device.index or 0) < torch.cuda.device_count():
        return None
    count = torch.cuda.device_count()
    if not count:
        return "torch sees no GPU here"
    return (
        f"there {'is 1 GPU' if count == 1 else f'are {count} GPUs'} here, cuda:0{f' to cuda:{count - 1}' * (count > 1)}"
    )


def supports_bf16(device: torch.device) -> bool:
    """Whether the device has bfloat16 matmul units; without them bfloat16 is emulated and slow."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def hardware_class(device: torch.device) -> str:
    """What decides how the device rounds: the GPU's name, or the CPU's architecture, vector units and bfloat16 units."""
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    vectors = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    return " ".join(filter(None, [device.type, platform.machine(), vectors, "bf16" if supports_bf16(device) else ""]))


def timed_on(device: torch.device, passes: str) -> str:
    """The device and how its passes are computed, for times (`choice.passes_of`). Where they are eager, a small draft costs more
    beside its target than on engines, which replay recorded graphs."""
    named = "recorded" if passes == "graphs" else passes
    return hardware_class(device) + ("" if computes_at_once(device) else f", {named} passes")


def computes_at_once(device: torch.device) -> bool:
    """Whether an operation has been computed when its call returns, as on the CPU."""
    return device.type == "cpu"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was asked for."""
    if not computes_at_once(device):
        torch.accelerator.synchronize(device)


def upload(values: Sequence[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """`values` of the host as a tensor on the device. The host does not wait: the device copies from pinned memory when it comes
    to it."""
    tensor = torch.as_tensor(values)
    return tensor if computes_at_once(device) else tensor.pin_memory().to(device, non_blocking=True)


def download(*tensors: torch.Tensor) -> list[NDArray[Any]]:
    """Tensors of one device, as arrays of the host. It waits once, for all of them."""
    if computes_at_once(tensors[0].device):
        return [tensor.numpy() for tensor in tensors]
    # Cloned: a tensor of one number is contiguous with any stride, and its bytes cannot be looked at.
    flat = [tensor.clone(memory_format=torch.contiguous_format).view(-1) for tensor in tensors]
    raw = torch.cat([tensor.view(torch.uint8) for tensor in flat]).cpu()
    ends = list(accumulate(tensor.nbytes for tensor in tensors))
    return [
        raw[end - tensor.nbytes : end].clone().view(tensor.dtype).view(tensor.shape).numpy()
        for tensor, end in zip(tensors, ends, strict=True)
    ]


class Stopwatch:
    """Seconds of the phases of a piece of work, without waiting for the device: its own clock is read where it has one."""

    def __init__(self, device: torch.device) -> None:
        self._device = None if computes_at_once(device) else device
        self._began, self._marks = perf_counter(), list[Any]()
        if self._device is not None:
            self.mark()

    def mark(self) -> None:
        """A phase ends here."""
        if self._device is None:
            self._marks.append(perf_counter())
            return
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """The seconds of each phase, then of what followed the last. The device must have passed the last mark."""
        now = perf_counter()
        if self._device is None:
            return [end - begin for begin, end in pairwise([self._began, *self._marks, now])]
        phases = [begin.elapsed_time(end) / 1000 for begin, end in pairwise(self._marks)]  # from milliseconds
        return [*phases, now - self._began - sum(phases)]
