"""Peak memory of a piece of work: of the process, and of the GPU where there is one."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Yields a dict that is filled at the end: `process` has the peak in bytes, memory held before included, `gpu` the GPU's if
    one was used. Systems other than Linux cannot reset the peak; there it is the peak since the process started."""
    found: dict[str, int] = {}
    with suppress(OSError):
        _RESET.write_text("5")
    if gpu := _gpu():
        gpu.reset_peak_memory_stats()
    try:
        yield found
    finally:
        found["process"] = _peak()
        if gpu := _gpu():
            found["gpu"] = gpu.max_memory_allocated()


def _gpu() -> Any:
    """torch.cuda if it is in use. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _peak() -> int:
    """Peak so far. Not from getrusage on Linux: there a process inherits the peak of its parent."""
    if _STATUS.exists():
        (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
