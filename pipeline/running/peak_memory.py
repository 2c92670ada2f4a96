"""The most memory that a piece of work needed: of the process, and of the GPU where there is one."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Filled at the end: bytes of `process`, those that lay there before among them, and of `gpu` if one was used. Where the
    system cannot forget its own mark (any but Linux), the process's highest so far."""
    found: dict[str, int] = {}
    with suppress(OSError):
        _FORGET.write_text("5")
    if gpu := _gpu():
        gpu.reset_peak_memory_stats()
    try:
        yield found
    finally:
        found["process"] = _highest()
        if gpu := _gpu():
            found["gpu"] = gpu.max_memory_allocated()


def _gpu() -> Any:
    """torch.cuda once somebody uses it; nobody is made to import torch for this."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _highest() -> int:
    """Not from getrusage on Linux: there a process inherits the mark of the one that started it."""
    if _STATUS.exists():
        (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
