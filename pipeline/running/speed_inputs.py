"""What step times depend on, as digests: the machine, the shapes of the models, and how long completions are.

Weights and acceptance are not among them, so drafts of equal shape share step times, also those of two runs. Torch-free.
"""

import importlib.metadata
import math
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any, cast

from pipeline.config.root import Config
from pipeline.models.places import Places
from pipeline.models.step_shape import step_shape
from pipeline.models.stored_pair import PAIR_FILE, ModelFacts, read_facts
from pipeline.store.artifacts import Artifact
from pipeline.store.files import content_key
from pipeline.store.own_files import reads_own_files
from pipeline.store.runs import OutsideInput

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPU = Path("/proc/cpuinfo")
BROKEN, COMPUTABLE = "broken", "computable"  # of an examined draft


def machine_input(config: Config) -> OutsideInput:
    """Processor or GPUs, threads and libraries of this machine, and where the config places the target."""
    gpus = [] if config.device == "cpu" else _gpus()
    if config.device.startswith("cuda") and not gpus:  # a driver that shows nothing, as in some containers
        gpus = [f"unknown, of {platform.node()}"]
    facts: dict[str, Any] = {
        "device": "cuda" if gpus else "cpu",
        "asked": config.device,  # which of several GPUs
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),  # none: then torch computes on the CPU
        "gpus": gpus,
        "processor": _processor(),
        "threads": os.environ.get("OMP_NUM_THREADS") or str(_cores()),
        "native": os.environ.get("UNDERSTUDY_NATIVE", ""),
        "target_device_map": config.pair.target.device_map,
    }
    facts |= {name: _version(name) for name in ("torch", "transformers")}
    return OutsideInput(content_key(facts), facts=facts)


@cache
def _version(library: str) -> str:
    """Read once: it takes 5 ms, and each run and plan asks."""
    return importlib.metadata.version(library)


@reads_own_files("of the kernel")
def _gpus() -> list[str]:
    """The names that the NVIDIA driver gives; none without it."""
    lines = [line for file in sorted(_GPUS.glob("*/information")) for line in file.read_text().splitlines()]
    return sorted(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))


@reads_own_files("of the kernel")
def _processor() -> str:
    lines = _CPU.read_text().splitlines() if _CPU.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shape_of(artifact: Artifact, role: str, places: Places) -> str:
    """The shape of a role's model: of a pair artifact, which records it also where a hub's model is not on this machine, or of
    one that holds a draft. A model that is damaged, or not here and of a pair that does not record it, is taken to have a shape
    of its own; the stage reports what is wrong with it."""
    own = artifact.provides.get(role, artifact.key)
    made: Path | None = artifact.path / role
    if role in places and not (artifact.path / role).is_dir() and (artifact.path / PAIR_FILE).exists():
        facts = cast(dict[str, ModelFacts], read_facts(artifact.path))[role]
        if "step_shape" in facts:
            return facts["step_shape"]
        made = places[role].find()
    return (step_shape(made) if made is not None else None) or own


def length_of(artifact: Artifact) -> str:
    """How long prompts and completions are in the mean, each to a power of two. Artifacts of earlier versions do not have the
    first."""
    count, before, tokens = (artifact.figures.get(name) for name in ("completions", "prompt_tokens", "tokens"))
    if not (count and tokens):
        return artifact.key
    after = f", after about {_power_of_two(before / count)}" if before else ""
    return f"about {_power_of_two(tokens / count)} tokens{after}"


def _power_of_two(number: float) -> int:
    return int(2 ** round(math.log2(max(number, 1))))


def computable(examination: Artifact) -> str:
    """Whether an examined draft could be computed. Step times are not measured with one that could not."""
    return BROKEN if examination.manifest.notes.get("broken") else COMPUTABLE
