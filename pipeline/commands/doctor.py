"""`understudy doctor`: what this machine has and lacks. It changes nothing, and imports no heavy library but torch.

The mark `missing` is only for what a run on a CPU needs; what is optional gets a `note`.
"""

import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath
from pipeline.native.compiler import SWITCH, cache_directory, compiler, switched_off

_PROBE_SECONDS = 1.0
_GIB = 1024**3
_MEMORY_WANTED_GIB = 4.0
_DISK_NEEDED_GIB, _DISK_WANTED_GIB = 0.5, 5.0
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;\s*(.*))?$")
_FAST_BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # the last is ARM's
_CPU_FLAGS = (*_FAST_BF16, "amx_int8", "avx512_vnni", "i8mm")
_TOOLS = {
    "nvcc": "CUDA extensions cannot be built; only GPU machines need them",
    "ninja": "extensions build slowly or not at all; pip install ninja",
}
_SLOWER = "without compiled code, decoding on the CPU takes about twice as long"
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Check:
    """One line: what was checked, the result, what was found and, if that is not enough, what to do."""

    name: str
    mark: Literal["ok", "missing", "note"]
    found: str
    remedy: str = ""


def doctor(
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List what this machine has and lacks. Exits with 1 if something is missing that a run on a CPU needs."""
    found = checks(store)
    typer.echo(json.dumps([asdict(check) for check in found], indent=1) if as_json else render(found))
    if any(check.mark == "missing" for check in found):
        raise typer.Exit(1)


def checks(store: Path) -> list[Check]:
    """All checks, in the order they are shown."""
    return [
        *_machine(),
        _accelerator(),
        *_libraries(),
        _c_compiler(),
        _compiled_code(),
        _compiled_cache(),
        *(_tool(name, remedy) for name, remedy in _TOOLS.items()),
        *_store(store),
        *(
            _credentials()
            or [_registry(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store}/mlflow/mlflow.db")]
        ),
        _hub(),
    ]


def render(found: list[Check]) -> str:
    """Aligned columns; what to do stands under its line; the result is the last line."""
    width = max(len(check.name) for check in found)
    colors = {"ok": typer.colors.GREEN, "missing": typer.colors.RED, "note": typer.colors.YELLOW}
    lines = []
    for check in found:
        mark = typer.style(f"{check.mark:<7}", fg=colors[check.mark])
        lines.append(f"{mark}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':9}{'':{width}}  -> {check.remedy}")
    missing = [check.name for check in found if check.mark == "missing"]
    lines.append(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing that a run on a CPU needs")
    return "\n".join(lines)


def _machine() -> list[Check]:
    python = Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    system = Check("system", "ok", platform.platform())
    if os.name != "posix":
        system = Check("system", "missing", platform.platform(), "the store's locks need Linux or macOS; use WSL")
    return [python, system, _cores(), _memory(), _cpu_flags()]


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{usable} usable of {os.cpu_count()}"
    quotas = [text.split() for text in _cgroup("cpu", "cpu.max")]
    limits = [int(quota) / int(period) for quota, period in quotas if quota != "max"]
    return Check("cores", "ok", found + (f", cgroup limit {min(limits):.1f}" if limits else ""))


def _memory() -> Check:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    texts = [*_cgroup("memory", "memory.max"), *_cgroup("memory", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text != "max"]
    limits = [limit for limit in limits if limit < total]  # "no limit" is spelt as a huge number in version 1
    found = f"{total / _GIB:.1f} GiB" + (f", cgroup limit {min(limits) / _GIB:.1f} GiB" if limits else "")
    if min([total, *limits]) < _MEMORY_WANTED_GIB * _GIB:
        return Check(
            "memory",
            "note",
            found,
            f"below {_MEMORY_WANTED_GIB:.0f} GiB only the reference pair fits; see `understudy plan CONFIG`",
        )
    return Check("memory", "ok", found)


def _cgroup(controller: str, name: str) -> list[str]:
    """What file `name` says in this process's control group and those around it; each of them limits."""
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = Path(_CGROUPS, controller) if controllers else Path(_CGROUPS)  # version 1; version 2, unnamed
        here = Path(path.lstrip("/"))
        found += [_read(str(base / place / name)) for place in (here, *here.parents)]
    return [text for text in dict.fromkeys(found) if text]


def _cpu_flags() -> Check:
    if platform.system() != "Linux":
        return Check("cpu bf16", "note", f"not checked on {platform.system()}")
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    have = set(line[1].split()) if line else set()
    found = ", ".join(flag for flag in _CPU_FLAGS if flag in have) or "none of AVX512-BF16, AMX, BF16"
    if not have.intersection(_FAST_BF16):
        return Check("cpu bf16", "note", found, "this CPU emulates bfloat16: use float32, which is faster")
    return Check("cpu bf16", "ok", found)


def _accelerator() -> Check:
    if not _installed("torch"):
        return Check("accelerator", "note", "unknown: torch is not installed")
    try:
        import torch
    except Exception as error:  # a broken install fails in many ways: OSError, ImportError, RuntimeError
        return Check(
            "accelerator",
            "missing",
            f"torch cannot be imported: {_first_line(error)}",
            "install torch again (constraints.txt names the tested version)",
        )
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Check(
            "accelerator",
            "ok",
            "cuda: " + ", ".join(f"{device.name} ({device.total_memory / _GIB:.0f} GiB)" for device in devices),
        )
    if torch.backends.mps.is_available():
        return Check("accelerator", "ok", f"mps: {platform.machine()}")
    if shutil.which("nvidia-smi"):
        return Check(
            "accelerator",
            "note",
            "none: CPU only, but nvidia-smi is installed",
            f"torch {torch.__version__} sees no GPU: install a CUDA build of torch, or check `nvidia-smi`",
        )
    return Check("accelerator", "note", "none: CPU only")


def _libraries() -> list[Check]:
    """Each library the package asks for, by its metadata; nothing is imported."""
    try:
        required = metadata.requires("understudy") or []
    except metadata.PackageNotFoundError:
        return [
            Check(
                "understudy",
                "missing",
                "not installed, so its requirements are unknown",
                "pip install -c constraints.txt -e .",
            )
        ]
    found = [Check("understudy", "ok", metadata.version("understudy"))]
    for line in required:
        parts = _REQUIREMENT.match(line.strip())
        if parts and "extra" not in (parts[3] or ""):
            found.append(_library(parts[1], parts[2].strip()))
    return found


def _library(name: str, bounds: str) -> Check:
    wanted = f"{name}{bounds}"
    if not _installed(name):
        return Check(name, "missing", f"not installed (wanted {bounds or 'any version'})", f"pip install '{wanted}'")
    version = metadata.version(name)
    if not _within(version, bounds):
        return Check(name, "missing", f"{version} (wanted {bounds})", f"pip install '{wanted}'")
    return Check(name, "ok", f"{version} (wanted {bounds or 'any version'})")


def _within(version: str, bounds: str) -> bool:
    """Whether `version` keeps the lower (>=) and upper (<) bounds; the only kinds our metadata has."""
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        if bound.startswith(">=") and _release(version) < _release(bound[2:]):
            return False
        if bound.startswith("<") and not bound.startswith("<=") and _release(version) >= _release(bound[1:]):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version without trailing zeros: 2.10, 2.10.0 and 2.10.0+cpu are one release."""
    match = re.match(r"\s*(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _tool(name: str, remedy: str) -> Check:
    path = shutil.which(name)
    return Check(name, "ok", path) if path else Check(name, "note", "not found", remedy)


def _c_compiler() -> Check:
    path = compiler()
    if path is None:
        return Check(
            "C compiler", "note", "not found", f"install gcc (Debian: build-essential) for compiled code; {_SLOWER}"
        )
    return Check("C compiler", "ok", path)


def _compiled_code() -> Check:
    """Whether our C code can be built, and which instruction sets it then uses. What is built here is not kept."""
    if switched_off():
        return Check("compiled code", "note", f"off: {SWITCH}=0 is set", f"unset {SWITCH}; {_SLOWER}")
    if compiler() is None:
        return Check("compiled code", "note", "not buildable: no C compiler")
    if not _installed("torch"):
        return Check("compiled code", "note", "unknown: torch is not installed")
    try:
        from pipeline.speculation.compiled_forward import instruction_sets
    except Exception as error:  # a broken torch, as above
        return Check("compiled code", "note", f"unknown: {_first_line(error)}")
    from pipeline.native.build import NotBuilt

    try:
        units = instruction_sets()
    except NotBuilt as error:
        remedy = f"repair the compiler, or name another one in CC; {_SLOWER}"
        return Check("compiled code", "note", f"not buildable: {_first_line(error)}", remedy)
    return Check("compiled code", "ok", "on: " + "; ".join(f"{dtype}: {used}" for dtype, used in units.items()))


def _compiled_cache() -> Check:
    """Where compiled code is kept; the directory is not made."""
    try:
        return Check("compiled cache", "ok", str(cache_directory(create=False)))
    except FileNotFoundError as error:
        place = _nearest(Path(error.filename))
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            return Check("compiled cache", "ok", f"{error.filename} (to be made)")
        found = f"{error.filename} cannot be made"
    except OSError as error:
        found = str(error)
    return Check(
        "compiled cache", "note", found, "each process compiles again; set XDG_CACHE_HOME to a writable directory"
    )


def _store(store: Path) -> list[Check]:
    """Free disk and the right to write, of the store or of the directory it would be made in."""
    place = _nearest(store)
    where = f"{store}" if place == store.absolute() else f"{store} (will be created)"
    try:
        with tempfile.TemporaryFile(dir=place):
            writable = Check("store", "ok", f"{where} is writable")
    except OSError as error:
        writable = Check("store", "missing", f"{where}: {error.strerror} at {place}", "choose another one with --store")
    free = shutil.disk_usage(place).free / _GIB
    disk = Check("disk", "ok", f"{free:.1f} GiB free at {place}")
    if free < _DISK_WANTED_GIB:
        mark: Literal["missing", "note"] = "missing" if free < _DISK_NEEDED_GIB else "note"
        disk = Check("disk", mark, disk.found, "free some space, or choose another --store")
    return [disk, writable]


def _credentials() -> list[Check]:
    """Addresses of MLflow that hold credentials: every command that needs MLflow refuses them."""
    from pipeline.registry.mlflow_client import addresses_with_credentials

    return [Check(name, "missing", "refused", mistake) for name, mistake in addresses_with_credentials().items()]


def _registry(uri: str) -> Check:
    """Whether the registry answers. What is shown never holds the user or password of the URI."""
    if uri.startswith("sqlite:///"):
        return _database(Path(uri.removeprefix("sqlite:///")))
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return Check("registry", "note", f"{parts.scheme or 'a path'}: not contacted; from MLFLOW_TRACKING_URI")
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    remedy = "start the server, or correct MLFLOW_TRACKING_URI; until then no draft is compared or promoted"
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return Check("registry", "ok", f"{shown} accepts connections")
    except (OSError, ValueError) as error:  # ValueError: a port that is not a number
        return Check("registry", "missing", f"{shown} does not answer: {_first_line(error)}", remedy)


def _database(path: Path) -> Check:
    made = os.path.isfile(path)
    if made:
        usable = os.access(path, os.R_OK | os.W_OK)
    else:
        place = _nearest(path.parent)
        usable = not os.path.exists(path) and place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    if not usable:
        return Check(
            "registry",
            "missing",
            f"SQLite at {path}: cannot be opened or created for writing",
            "correct MLFLOW_TRACKING_URI, or choose another --store",
        )
    return Check("registry", "ok", f"SQLite at {path}" + ("" if made else " (will be created)"))


def _hub() -> Check:
    """The settings of the model hub. The hub is not contacted, and the token is never shown."""
    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Check("hub", "note", f"{token}; HF_HUB_OFFLINE is set: only cached models can be used")
    return Check("hub", "note", f"{token}; HF_HUB_OFFLINE is not set; not contacted")


def _nearest(path: Path) -> Path:
    """`path` if it exists, else the nearest of its parents that does. Unlike `Path.exists`, raises on no directory."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
