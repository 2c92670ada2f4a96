"""The most memory that a piece of work needed: of the process, and of the GPU where there is one."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of what the system counts in


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Filled at the end: bytes of `process`, those that lay there before among them, and of `gpu` if one was used. Where the
    system cannot forget its own mark (any but Linux), the process's highest so far."""
    found: dict[str, int] = {}
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if gpu := _gpu():
        gpu.reset_peak_memory_stats()
    try:
        yield found
    finally:
        found["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
        if gpu := _gpu():
            found["gpu"] = gpu.max_memory_allocated()


def _gpu() -> Any:
    """torch.cuda once somebody uses it; nobody is made to import torch for this."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
