"""What a manifest says of where an artifact was made. Imports none of the libraries that it names."""

import functools
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

from pipeline.errors import UsageError

_REPORTED_LIBRARIES = ("torch", "transformers", "trl", "bitsandbytes", "mlflow", "numpy")


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


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine(), "git": _git_revision()}
    for name in ("understudy", *_REPORTED_LIBRARIES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _git_revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"
