"""Where the C compiler is, and where its output is kept. Imports no heavy library."""

import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from pipeline.store.own_files import reads_own_files

SWITCH = "UNDERSTUDY_NATIVE"  # "0" switches compiled code off


def compiler() -> str | None:
    """The C compiler that is used: `CC`, gcc or cc."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "cc")))), None)


@cache
def version(path: str) -> str:
    """What the compiler at `path` prints of its version; a package update changes it under the same path. Raises OSError or
    SubprocessError."""
    return subprocess.run([path, "--version"], check=True, capture_output=True, text=True, timeout=30).stdout


@reads_own_files("of the kernel")
def processor() -> str:
    """What `-march=native` depends on: a home directory may be shared between machines."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return flags[1] if flags else platform.processor()


def switched_off() -> bool:
    """Whether the user wants no compiled code."""
    return os.environ.get(SWITCH) == "0"


def cache_directory(create: bool = True) -> Path:
    """Where the user's libraries are kept. Raises OSError if there is no such directory, or if other users could write to it: we
    would run what they put there."""
    try:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "understudy")
    except RuntimeError as error:
        raise OSError("this user has no home directory") from error
    if create:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{directory} is writable by other users")
    return directory
