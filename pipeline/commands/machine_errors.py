"""Errors of a machine that is full or limited, in one line: disk, memory, file sizes. Also where a library raised them."""

import errno
from collections.abc import Iterator

from pipeline.models.out_of_memory import is_out_of_memory

_KEPT = "and run again; finished artifacts are kept"
_FULL = f"no space left on the disk; free some space {_KEPT}"
_READ_ONLY = "the file system is read-only; choose a writable --store"
_TOO_LARGE = f"a file is larger than this process or the file system allows; raise the limit (ulimit -f) {_KEPT}"
_BROKEN = f"the disk or its server fails (I/O error); see the system's log {_KEPT}"
_DISK = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: f"the disk quota is used up; free some space {_KEPT}",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: "permission denied; change the permissions, or choose a --store that you may write to",
    errno.EFBIG: _TOO_LARGE,
    errno.EIO: _BROKEN,
    errno.ESTALE: _BROKEN,
}
_PROCESS = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files (ulimit -n)",
    errno.ENFILE: "open files of this machine",
    errno.EAGAIN: "processes and threads (ulimit -u)",
}
_SAID_OF_DISK = {  # by libraries that raise errors of their own
    ("no space left", "os error 28", "disk is full"): _FULL,
    ("read-only file system", "os error 30", "readonly database"): _READ_ONLY,
    ("file too large", "os error 27"): _TOO_LARGE,
    ("disk i/o error", "os error 5)"): _BROKEN,
}
_SAID_OF_MEMORY = ("failed to map segment", "can't start new thread")


def explain(error: BaseException) -> str | None:
    """One line with what the machine lacks and what to do; None for other errors."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _DISK:
            return f"{cause.filename or 'the store'}: {_DISK[cause.errno]}"
        if isinstance(cause, OSError) and cause.errno in _PROCESS:
            return _lacking(_PROCESS[cause.errno])
        text = str(cause).lower()
        for phrases, line in _SAID_OF_DISK.items():
            if any(phrase in text for phrase in phrases):
                return f"the store: {line}"
        if is_out_of_memory(cause) or any(phrase in text for phrase in _SAID_OF_MEMORY):
            return _lacking("memory")
    return None


def _lacking(what: str) -> str:
    if what == "memory":
        return f"not enough memory; raise the limit (ulimit -v, the container's), or lower the batches of the config, {_KEPT}"
    return f"too many {what}; raise the limit {_KEPT}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
