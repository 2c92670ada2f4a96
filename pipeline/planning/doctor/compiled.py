"""Tools and compiled code: what can be built on this machine, and where it is kept."""

import os
import shutil
from pathlib import Path

from pipeline.native.compiler import SWITCH, cache_directory, compiler, switched_off
from pipeline.planning.doctor.check import Check, first_line, installed, nearest

_SLOWER = "without compiled code, decoding on the CPU takes about twice as long"
_TOOLS = {
    "nvcc": "CUDA extensions cannot be built; only GPU machines need them",
    "ninja": "extensions build slowly or not at all; pip install ninja",
}


def compiled() -> list[Check]:
    """The C compiler, our compiled code and its cache, and optional build tools."""
    return [
        _c_compiler(),
        _compiled_code(),
        _compiled_cache(),
        *(_tool(name, remedy) for name, remedy in _TOOLS.items()),
    ]


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
    if not installed("torch"):
        return Check("compiled code", "note", "unknown: torch is not installed")
    try:
        from pipeline.speculation.compiled_forward import instruction_sets
    except Exception as error:  # a broken torch, as above
        return Check("compiled code", "note", f"unknown: {first_line(error)}")
    from pipeline.native.build import NotBuilt

    try:
        units = instruction_sets()
    except NotBuilt as error:
        remedy = f"repair the compiler, or name another one in CC; {_SLOWER}"
        return Check("compiled code", "note", f"not buildable: {first_line(error)}", remedy)
    return Check("compiled code", "ok", "on: " + "; ".join(f"{dtype}: {used}" for dtype, used in units.items()))


def _compiled_cache() -> Check:
    """Whether the directory of compiled code can be used; it is not made."""
    try:
        return Check("compiled cache", "ok", str(cache_directory(create=False)))
    except FileNotFoundError as error:
        place = nearest(Path(error.filename))
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            return Check("compiled cache", "ok", f"{error.filename} (to be made)")
        problem = f"{error.filename} cannot be made"
    except OSError as error:
        problem = str(error)
    return Check(
        "compiled cache", "note", problem, "each process compiles again; set XDG_CACHE_HOME to a writable directory"
    )
