"""Peak memory of a piece of work: of the process, and of the GPU where there is one."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.store.own_files import reads_own_files

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Yields a dict that is filled at the end: `process` has the peak in bytes, memory held before included, `gpu` the GPU's if
    one was used. Systems other than Linux cannot reset the peak; there it is the peak since the process started."""
    peaks: dict[str, int] = {}
    with suppress(OSError):
        _RESET.write_text("5")
    if gpu := _gpu():
        for number in range(gpu.device_count()):
            gpu.reset_peak_memory_stats(number)
    try:
        yield peaks
    finally:
        peaks |= peak_so_far()


def peak_so_far() -> dict[str, int]:
    """Since the process started, or since `peak_memory` began; of several GPUs that of the fullest."""
    gpu = _gpu()
    of_gpu = {"gpu": max(map(gpu.max_memory_allocated, range(gpu.device_count())))} if gpu else {}
    return {"process": _peak()} | of_gpu


def _gpu() -> Any:
    """torch.cuda if it is in use. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


@reads_own_files("of the kernel")
def _peak() -> int:
    """Peak so far. Not from getrusage on Linux: there a process inherits the peak of its parent."""
    if _STATUS.exists():
        (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
