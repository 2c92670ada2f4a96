"""The device of these tests: the pretend one, or a GPU with `UNDERSTUDY_TEST_DEVICE=cuda` (`make test-gpu`)."""

import copy
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.device import pretend

_ROOT = Path(__file__).resolve().parents[2]
ON_GPU = os.environ.get("UNDERSTUDY_TEST_DEVICE", "") == "cuda"
DEVICE = torch.device("cuda", 0) if ON_GPU else pretend.device()

# How far logits and figures may be from the CPU's. The pretend device has the CPU's kernels, which sum in another order for other
# shapes and threads; a GPU has its own, and its float32 matmuls may round to TF32 (10 bits) where a library allows that.
CLOSE = {torch.float64: 1e-10, torch.float32: 5e-3 if ON_GPU else 1e-4, torch.bfloat16: 0.25 if ON_GPU else 0.1}
# Relative, of losses and figures of weights in six steps. Muon makes a last digit a third one; sums have other orders.
APART = 0.05 if ON_GPU else 5e-3  # a GPU's Muon orthogonalises in bfloat16
FIGURES = 0.02 if ON_GPU else 0.002  # of acceptance rates after a training


@dataclass
class Waits:
    """For what the host waited, by the line of the product, where it is known."""

    by_line: Counter[str] = field(default_factory=Counter)
    float64: Counter[str] = field(default_factory=Counter)  # kernels; not known on a GPU

    @property
    def total(self) -> int:
        return sum(self.by_line.values())

    def __str__(self) -> str:
        return "\n".join(f"{count:5d}  {line}" for line, count in self.by_line.most_common())


@contextmanager
def waits() -> Iterator[Waits]:
    """What the host waits for within. On a GPU torch says it itself, though not for every kind of wait."""
    found = Waits()
    if not ON_GPU:
        with pretend.counted() as counts:
            yield found
        found.by_line.update({f"{what}, {line}": count for (what, line), count in counts.waits.items()})
        found.float64.update(counts.float64)
        return
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found.by_line.update(
        f"{one.filename.rpartition('/')[2]}:{one.lineno}"
        for one in raised
        if "synchroniz" in str(one.message)
        and "prototype" not in str(one.message)  # what torch says of the mode itself
    )


def environment(devices: int = 1, on_device: bool = True) -> dict[str, str]:
    """Of a program that is to find the device, or several, by itself."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    found = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), MLFLOW_TRACKING_URI="http://127.0.0.1:1")
    return found | (pretend.environment(devices) if on_device and not ON_GPU else {})


def there(model: Any) -> Any:
    """A copy of the model on the device."""
    return copy.deepcopy(model).to(DEVICE)
