"""C code of ours, built by the machine's compiler at first use and kept in the user's cache.

Half a second's work; where there is no compiler, or `UNDERSTUDY_NATIVE=0` is set, callers do without. Sources may include
`vectors.h`, which lies beside this file.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

FLAGS = ["-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
SOURCES = Path(__file__).parent
_HEADER = SOURCES / "vectors.h"
_BUILD_SECONDS = 30
_log = logging.getLogger(__name__)


def compiler() -> str | None:
    """The C compiler that would be used: `CC`, gcc or cc."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "cc")))), None)


def load(source: Path, flags: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The library of `source`, built with `flags` besides FLAGS; None where nothing can be built."""
    path = compiler()
    if os.environ.get("UNDERSTUDY_NATIVE") == "0" or path is None:
        return None
    try:
        return _built(source, [path, *FLAGS, *flags])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        _log.info("%s is not built, the plain way is taken: %s", source.name, said.strip().splitlines()[:1])
        return None


def _built(source: Path, command: list[str]) -> ctypes.CDLL:
    """The library that `command` makes, from the user's cache if it was made before: by the same source, flags and compiler, for
    the same processor and torch. Raises OSError or SubprocessError."""
    text = source.read_bytes() + _HEADER.read_bytes()
    identity = repr((text, command, platform.machine(), _processor(), torch.__version__))
    name = f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    home = _cache()
    if home is not None and (home / name).is_file():
        try:
            return ctypes.CDLL(str(home / name))
        except OSError:
            pass  # damaged, or not allowed to run from there: built anew
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, name)
        command = [*command, f"-I{_HEADER.parent}", str(source), *_openmp(), "-lm", "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_BUILD_SECONDS)
        library = ctypes.CDLL(str(made))  # it stays loaded when its file is gone
        if home is not None:
            _keep(made, home / name)
    return library


def _cache() -> Path | None:
    """The user's own cache; None where there is none, or others could put a library there that we would run."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "understudy")
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = home.stat()
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    return home if found.st_uid == os.geteuid() and not found.st_mode & 0o022 else None


def _keep(made: Path, place: Path) -> None:
    """Whole or not at all; without it, the next process builds its own."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as kept:
        try:
            kept.write(made.read_bytes())
            kept.flush()
            os.fsync(kept.fileno())
            os.replace(kept.name, place)
        except OSError:
            os.unlink(kept.name)


def _processor() -> str:
    """What `-march=native` looks at: a home may be shared between machines."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return flags[1] if flags else platform.processor()


def _openmp() -> list[str]:
    """The OpenMP runtime that torch has loaded. With another one of our own, two sets of threads would wait for each other."""
    try:
        loaded = re.search(r"\S*/libgomp\S*\.so\S*", Path("/proc/self/maps").read_text())
    except OSError:
        loaded = None
    return [loaded[0]] if loaded else []
