"""A pretend accelerator, `pretend`, on a machine without one (`device.cpp` says what it can show and what not).

`device()` builds it at first use, in about half a minute, with torch's own headers and the C++ compiler of the machine. Programs
that have `environment()` load it as they import torch, by torch's own mechanism for devices of other packages. There is one of
them, unless `environment` asks for more; processes that have one each exchange tensors by `pretend_ccl`, torch's default for it.
"""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

NAME = "pretend"
_HERE = Path(__file__).parent
_SOURCE, _INSTALLED, _ROOT = _HERE / "device.cpp", _HERE / "installed", _HERE.parents[2]
_BUILDS = _ROOT / ".understudy" / "pretend"
_OURS = ("/pipeline/", "/stages/")
_MODULE = "understudy_pretend_device"
_DEVICES = "UNDERSTUDY_PRETEND_DEVICES"  # how many there are


@dataclass
class Counts:
    """What happened on the device within `counted`."""

    launches: Counter[str] = field(default_factory=Counter)  # kernels by operator
    float64: Counter[str] = field(default_factory=Counter)  # of these, those with a float64 tensor
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)  # of the host: for what, and the line that asked

    def table(self, per: float = 1.0) -> str:
        """The waits by line, most first, each divided by `per`: for messages of tests."""
        return "\n".join(f"{count / per:7.2f}  {what:20s} {line}" for (what, line), count in self.waits.most_common())


def device() -> torch.device:
    """The pretend device. Tensors are moved to it as to any other."""
    _extension()
    return torch.device(NAME, 0)


def environment(devices: int = 1) -> dict[str, str]:
    """Variables with which a program finds the device, or several: `device: auto` is it."""
    paths = [str(_INSTALLED), str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), _DEVICES: str(devices)}


def load() -> None:
    """Called by torch as it is imported, where the entry point of `installed/` is found."""
    _extension()


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts of what is done within. Not within itself."""
    found, extension = Counts(), _extension()
    extension.begin(lambda what: found.waits.update([(what, _line())]))
    try:
        yield found
    finally:
        launches, float64 = extension.end()
        found.launches.update(launches)
        found.float64.update(float64)


def memory() -> tuple[int, int]:
    """Bytes that tensors on the device hold now, and the most since `reset_peak`."""
    held, most = _extension().memory()
    return int(held), int(most)


def reset_peak() -> None:
    _extension().reset_peak()


def _line() -> str:
    """The innermost line of the product that is running. The backward pass has a thread of its own, and waits in none."""
    frame: Any = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _OURS):
            return f"{name.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@cache
def _extension() -> Any:
    spec = importlib.util.spec_from_file_location(_MODULE, _built())
    assert spec is not None
    assert spec.loader is not None
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(extension))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    extension.register_hooks()
    dist.Backend.register_backend("pretend_ccl", _group, devices=[NAME])
    return extension


def _group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Of torch.distributed, for the device: by gloo, in the same memory."""
    return _extension().group(dist.ProcessGroupGloo(store, rank, size, timeout))


def _built() -> Path:
    """The compiled extension for this source and this torch. One process builds it, the others wait."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + f"{torch.__version__} {sys.version}".encode()).hexdigest()[:16]
    place = _BUILDS / digest / f"{_MODULE}.so"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _compile(place)
    return place


def _compile(place: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    begun = place.with_suffix(".begun")
    options = ["-shared", "-fPIC", "-std=c++20", "-O1", f"-DTORCH_EXTENSION_NAME={_MODULE}", *_abi()]
    found = [f"-isystem{path}" for path in headers], [f"-L{path}" for path in library_paths()]
    libraries = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    command = [os.environ.get("CXX", "c++"), *options, *found[0], str(_SOURCE), "-o", str(begun), *found[1], *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{_SOURCE} was not compiled: {done.stderr[-2000:]}")
    begun.rename(place)


def _abi() -> list[str]:
    return [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _module(extension: Any) -> types.ModuleType:
    """`torch.pretend`, as torch and its users expect it beside `torch.cuda`."""

    def index_of(which: Any = None) -> int:
        named = torch.device(NAME, which) if isinstance(which, int) else torch.device(which or NAME)
        return int(extension.current_device() if named.index is None else named.index)

    @contextmanager
    def device(which: Any) -> Iterator[None]:
        before = extension.current_device()
        extension.set_device(index_of(which))
        try:
            yield
        finally:
            extension.set_device(before)

    @contextmanager
    def stream(which: Any) -> Iterator[None]:
        """A device has one."""
        yield

    module: Any = types.ModuleType(f"torch.{NAME}")
    module.device = device
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = extension.device_count
    module.current_device = extension.current_device
    module.set_device = lambda which: extension.set_device(index_of(which))
    module.synchronize = lambda *which: None
    module.empty_cache = lambda: None
    module.stream = stream
    module.Stream = lambda *which, priority=0: torch.Stream(torch.device(NAME, index_of(*which)), priority=priority)
    module.current_stream = lambda which=None: torch.Stream(torch.device(NAME, index_of(which)))
    module.Event = lambda **options: torch.Event(NAME, **options)
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda which=0: torch.get_rng_state()
    module.set_rng_state = lambda state, which=0: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    return module
