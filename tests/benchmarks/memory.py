"""Memory of what runs in a process of its own, and what it prints there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT


def in_child(module: str, *words: object) -> Any:
    """The JSON that a module of the benchmarks prints last, run in a process of its own with these words."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *map(str, words)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


def mib(file: str, name: str) -> float:
    """A line of /proc/self/<file>, which is in kB; 0 where there is no such thing."""
    path = Path("/proc/self") / file
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)
