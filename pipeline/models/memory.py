"""Sizes of memory: what this process can still get on the host, and what a training of all weights holds. Torch-free."""

import re
import resource
from pathlib import Path
from typing import Literal

from pipeline.store.own_files import reads_own_files

_CGROUPS = "/sys/fs/cgroup"
_GIB = 1 << 30
Optimizer = Literal["adamw", "muon"]
_WEIGHT, _GRADIENT = 4, 4  # bytes of a parameter in training: float32
_STATE = {"adamw": 8, "muon": 4}  # muon: of its matrices; the others have more


@reads_own_files("of the kernel")
def free_host_memory() -> int | None:
    """Bytes that the machine, its control groups and the process's own limit leave, swap included; None where the system does not
    state, as on others than Linux."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read_text("/proc/meminfo"), re.MULTILINE))
    if "MemAvailable" not in meminfo:
        return None
    free = [1024 * (int(meminfo["MemAvailable"]) + int(meminfo.get("SwapFree", 0)))]
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        pages = int((read_text("/proc/self/statm").split() or ["0"])[0])
        free.append(most - pages * resource.getpagesize())
    return max(0, min(free + _left_in_groups()))


def _left_in_groups() -> list[int]:
    """What is left of memory in each control group with a limit. Files in its cache count as left, also those that were
    read more than once, such as the weights of a model that was hashed: the system drops them before it ends a process."""
    left = []
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        groups = zip(*(cgroup_files("memory", name) for name in (most, used, "memory.stat")), strict=True)
        for limit, current, stat in groups:
            if limit.isdigit() and current.isdigit():
                left.append(int(limit) - int(current) + _cached(stat))
    return left


def _cached(stat: str) -> int:
    """Bytes of files in the cache of a control group. In version 1 those of the groups inside are in figures of their own, as
    they are in the usage."""
    figures = {name: int(size) for name, size in re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE)}
    names = ("active_file", "inactive_file")
    return sum(figures.get(f"total_{name}", figures.get(name, 0)) for name in names)


@reads_own_files("of the kernel")
def cgroup_files(controller: str, name: str) -> list[str]:
    """What file `name` states in this process's control group and those around it, each of which limits; "" where there is
    none."""
    texts = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = Path(_CGROUPS, controller) if controllers else Path(_CGROUPS)  # version 1; version 2, unnamed
        here = Path(path.lstrip("/"))
        texts += [read_text(str(base / place / name)) for place in (here, *here.parents)]
    return texts


@reads_own_files("of the kernel")
def read_text(path: str) -> str:
    """The content of a file of the system; "" if there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def training_bytes(parameters: float, optimizer: Optimizer, parts: int = 1) -> float:
    """Bytes that each of `parts` processes holds that divide a model; 1: of a process with the whole model. Weights, their
    gradients and the optimizer's state, without activations: a lower bound.

    The larger of a training step and of an examination of a divided model, for which each process holds the whole weights too.
    """
    state = _STATE[optimizer]
    step, between = _WEIGHT + _GRADIENT + state, _WEIGHT + state
    return parameters * (step if parts == 1 else max(step / parts, between / parts + _WEIGHT))


def gib(size: float) -> str:
    """A size of memory, for people."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.1f} MiB"
