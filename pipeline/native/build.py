"""Our C code, compiled at first use and kept in the user's cache.

Compiling takes about a second. Without a compiler, after a failed build, or with `UNDERSTUDY_NATIVE=0`, `load` returns None and
the caller uses PyTorch. Sources may include `simd.h`, which lies beside this file.

ctypes trusts a `Structure` without a check. One field too many, or two in another order, would make compiled code read other
memory. So each C source exports the name, offset and size of every field (`field_layout` in `simd.h`), which are compared when a
library is loaded.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from pipeline.native.compiler import SWITCH, cache_directory, compiler, processor, switched_off, version
from pipeline.store.own_files import reads_own_files

FLAGS = ["-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
SOURCES = Path(__file__).parent
_HEADER = SOURCES / "simd.h"
_DIGEST_BYTES = hashlib.sha256().digest_size
_TIMEOUT_SECONDS = 120  # a second or two on a quiet machine
_log = logging.getLogger(__name__)


class NotBuilt(Exception):
    """Why there is no compiled code, in one line."""


def load(
    source: Path, flags: Sequence[str] = (), structures: Mapping[str, type[ctypes.Structure]] | None = None
) -> ctypes.CDLL | None:
    """The library of `source`, compiled with FLAGS and `flags`; None where it cannot be built.

    `structures` are the structs that both sides declare, by their names in C; they are compared.
    """
    try:
        library = build(source, flags)
        for name, structure in (structures or {}).items():
            check_layout(library, name, structure)
    except (NotBuilt, ValueError) as error:  # ValueError: the library lacks a name, so it is not ours
        _log_once(f"Compiled code is not used, PyTorch is used instead: {error}")
        return None
    return library


def build(source: Path, flags: Sequence[str] = (), keep: bool = True) -> ctypes.CDLL:
    """The library of `source`: from the user's cache, or built, and then kept there if `keep`. Raises NotBuilt."""
    path = compiler()
    if switched_off():
        raise NotBuilt(f"{SWITCH}=0 is set")
    if path is None:
        raise NotBuilt("no C compiler was found")
    try:
        return _built(source, [path, *FLAGS, *flags], keep)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"{source.name}: {_first_line(error, path)}") from error


def _first_line(error: OSError | subprocess.SubprocessError, path: str) -> str:
    """The first line that the compiler wrote; without one, how it ended."""
    if isinstance(error, subprocess.CalledProcessError):
        return next(iter(error.stderr.strip().splitlines()), f"{path} ended with exit code {error.returncode}")
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{path} took more than {_TIMEOUT_SECONDS} seconds"
    return next(iter(str(error).splitlines()), type(error).__name__)


@cache
def _log_once(message: str) -> None:
    _log.info(message)


def _log_not_kept(error: OSError) -> None:
    _log_once(f"Compiled code cannot be kept, so each process compiles it again: {error}")


@reads_own_files("compiled by this installation")
def _built(source: Path, command: list[str], keep: bool) -> ctypes.CDLL:
    """The library that `command` builds. In the cache it is known by its source, flags and compiler with its version, the
    processor, and torch's version. Raises OSError or SubprocessError."""
    text = source.read_bytes() + _HEADER.read_bytes()
    identity = repr((text, command, version(command[0]), platform.machine(), processor(), torch.__version__))
    name = f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    kept: Path | None = None
    try:
        kept = cache_directory(create=keep) / name
    except OSError as error:
        _log_not_kept(error)
    if kept is not None and _is_whole(kept):
        # A mount without permission to execute raises OSError: then it is built again.
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, name)
        command = [*command, f"-I{_HEADER.parent}", str(source), *_openmp(), "-lm", "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS)
        library = ctypes.CDLL(str(made))  # it stays loaded after its file is deleted
        if keep and kept is not None:
            _keep(made, kept)
    return library


@reads_own_files("compiled by this installation; compares a SHA-256")
def _is_whole(path: Path) -> bool:
    """Whether the file ends with the digest of what is before it. Loading a truncated library would kill the process."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


@reads_own_files("compiled by this installation")
def _keep(made: Path, place: Path) -> None:
    """Copies the library into the cache, whole or not at all, with its digest at the end, which the loader ignores."""
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as copy:
            try:
                content = made.read_bytes()
                copy.write(content + hashlib.sha256(content).digest())
                copy.flush()
                os.fsync(copy.fileno())
                os.replace(copy.name, place)
            except OSError:
                os.unlink(copy.name)
                raise
    except OSError as error:
        _log_not_kept(error)


@reads_own_files("of the kernel")
def _openmp() -> list[str]:
    """The OpenMP runtime that torch has loaded. With a second one, two pools of threads would wait for each other."""
    try:
        loaded = re.search(r"\S*/libgomp\S*\.so\S*", Path("/proc/self/maps").read_text())
    except OSError:
        loaded = None
    return [loaded[0]] if loaded else []


class _FieldLayout(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_int64), ("size", ctypes.c_int64))


def check_layout(library: ctypes.CDLL, name: str, structure: type[ctypes.Structure]) -> None:
    """Asserts that `structure` is the library's struct `name`: same size, and same name, offset and size of each field."""
    in_c = _exported(library, name)
    in_python = [(name, 0, ctypes.sizeof(structure))]
    for field, *_ in structure._fields_:
        place = getattr(structure, field)
        in_python.append((field, place.offset, place.size))
    different = sorted(set(in_c) ^ set(in_python), key=lambda field: field[1])
    assert in_c == in_python, f"struct {name} is not the same in C and in Python: {different}"


def _exported(library: ctypes.CDLL, name: str) -> list[tuple[str, int, int]]:
    """(name, offset, size) of the struct and of its fields, up to the null name that ends the list."""
    first = ctypes.pointer(_FieldLayout.in_dll(library, f"{name}_layout"))
    fields: list[tuple[str, int, int]] = []
    while first[len(fields)].name is not None:
        entry = first[len(fields)]
        fields.append((entry.name.decode(), entry.offset, entry.size))
    return fields
