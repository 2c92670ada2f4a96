"""What every benchmark shares: timing commands, and one JSON file a figure with machine, versions and command."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
UNDERSTUDY = str(Path(sys.executable).parent / "understudy")


def seconds(command: Sequence[str], repeats: int) -> dict[str, float]:
    """Median, lowest and highest wall time of `command`, after one unmeasured call."""
    times = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        if number:
            times.append(time.perf_counter() - began)
    return {"median": statistics.median(times), "lowest": min(times), "highest": max(times), "repeats": float(repeats)}


def write(name: str, command: str, figure: dict[str, Any]) -> None:
    """One JSON file a figure."""
    RESULTS.mkdir(exist_ok=True)
    content = {"name": name, "command": command, "machine": _machine(), "versions": _versions(), "figure": figure}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _machine() -> dict[str, Any]:
    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl", "mlflow")}
