"""The machine of a run: whether it has the device, and what a manifest records of where an artifact was made, by this process and
by its workers. Imports none of the libraries that it names."""

import functools
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.running.peak_memory import peak_so_far
from pipeline.running.stage_list import Stage

_REPORTED_LIBRARIES = ("torch", "transformers", "trl", "bitsandbytes", "mlflow", "numpy")


def require_device(device: str, stages: Sequence[Stage]) -> None:
    """UsageError where one of the stages that are asked for uses the device, and it is not there. Only a GPU can be missing, so
    for another device torch is not imported."""
    if device.startswith("cuda") and any(stage.uses_device for stage in stages):
        from pipeline.models.devices import choose_device

        choose_device(device)


def require_ray() -> Any:
    """The package ray. UsageError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise UsageError(
            "execution.ray: Ray is not installed; install understudy[ray], or use execution.local"
        ) from None
    return ray


def environment(device: str) -> dict[str, str]:
    """Versions, machine, git revision, and the class of the device called `device`: equal bytes are promised within a class only.

    Call it after the stage: a stage that has not imported `models/devices.py` has computed nothing on one.
    """
    return {**_versions(), "device": device_class(device)}


def device_class(device: str) -> str:
    """The class of the device called `device`; that of the CPU in a process that has computed nothing on a device."""
    devices = sys.modules.get("pipeline.models.devices")
    if devices is None:
        return f"cpu {platform.machine()}"
    try:
        return str(devices.hardware_class(devices.choose_device(device)))
    except UsageError:  # it is not here: nothing was computed on it
        return f"cpu {platform.machine()}"


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker reports of itself with each part that it has made: the class of its device, and its peak memory until now in
    bytes, of the process and of its GPU."""

    device: str
    peak: Mapping[str, int]


def own_facts(device: str) -> WorkerFacts:
    """The facts of this process, which computes on the device called `device`."""
    return WorkerFacts(device_class(device), peak_so_far())


def environment_of(workers: Sequence[WorkerFacts]) -> dict[str, str]:
    """The workers' devices, in place of the driver's own, on which nothing was computed; empty without workers."""
    if not workers:
        return {}
    return {"device": ", ".join(sorted({worker.device for worker in workers})), "workers": str(len(workers))}


def highest_peak(own: Mapping[str, int], workers: Sequence[WorkerFacts]) -> dict[str, int]:
    """The highest peak of the driver and each worker, by kind of memory."""
    peaks = [own, *(worker.peak for worker in workers)]
    return {
        kind: max(peak.get(kind, 0) for peak in peaks) for kind in sorted({kind for peak in peaks for kind in peak})
    }


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "machine": platform.machine(), "git": _git_revision()}
    for name in ("understudy", *_REPORTED_LIBRARIES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _git_revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"
