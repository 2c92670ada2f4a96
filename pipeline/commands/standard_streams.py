"""Standard streams that may be closed, full, or lose their reader while a command is at work.

A reader that goes away (`| head -1`, a closed terminal) wants no more lines: the command goes on, and its exit code is that of
its work. A log on stderr that cannot be written ends no run either. A result on stdout that cannot be written is an error. Does
not know what is printed.
"""

import errno
import io
import os
import re
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_GONE = (errno.EPIPE, errno.EIO)  # of a pipe; of a terminal
_SIZE = re.compile("[1-9][0-9]{0,5}")


def protect() -> None:
    """Call it first: before a file is opened, and before anything keeps `sys.stdout` or `sys.stderr`."""
    _fill_gaps()
    sys.stdout = _lasting(sys.stdout, 1, "standard output")
    sys.stderr = _lasting(sys.stderr, 2, "")


def ignore_impossible_sizes() -> None:
    """Remove COLUMNS and LINES that are no size, such as the 0 of some terminals: the libraries that print fail on them."""
    for name in ("COLUMNS", "LINES"):
        if not _SIZE.fullmatch(os.environ.get(name, "1")):
            del os.environ[name]


def _fill_gaps() -> None:
    """Open what the caller has closed of descriptors 0 to 2: the next files to be opened would get these numbers, such as an
    artifact into which a library then writes its warnings."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _lasting(stream: TextIO | None, number: int, required: str) -> TextIO:
    if stream is not None:
        try:
            if stream.fileno() != number:
                return stream
        except (OSError, ValueError):  # no stream of this process, such as one that a test reads
            return stream
    encoding = "utf-8" if stream is None else stream.encoding
    raw = _Raw(number, required)
    # A character that the terminal's encoding lacks is shown as an escape. No BufferedWriter between, which has a lock: where a
    # thread still writes when the process ends, Python would wait for it for ever, or abort.
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


class _Raw(io.FileIO):
    """A descriptor that is replaced by the null device once it cannot be written. `required`: its name in the error where
    that loses a result; empty where it is no error."""

    def __init__(self, number: int, required: str) -> None:
        super().__init__(number, "w", closefd=False)
        self._required = required

    def write(self, data: "ReadableBuffer") -> int:
        """All of it; it waits where the reader has made a pipe that does not block."""
        left = memoryview(data).cast("B")
        try:
            while left:
                if (written := super().write(left)) is None:
                    select.select([], [self.fileno()], [])
                else:
                    left = left[written:]
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if self._required and error.errno not in _GONE:
                raise OSError(error.errno, error.strerror, self._required) from None
        return memoryview(data).nbytes
