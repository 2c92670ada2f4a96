"""Limits of time and memory while a chat template runs. Strangers write templates: one may never end, or ask for all memory.

They hold within this process, so a template costs what it cost before. docs/decisions/corpus.md lists what they cannot stop.
"""

import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pipeline.store.own_files import reads_own_files

SECONDS = 10.0  # of computing, for one prompt; a template takes a tenth of a millisecond
BYTES = 1 << 30  # beside what the process has
CHARACTERS = 32_000_000  # of a rendered prompt; its messages have at most a million
_EVERY = 256  # calls between two looks at the size of the process

T = TypeVar("T")


class TemplateStopped(Exception):
    """The template was stopped; the message states at which limit."""


class _TooSlow(BaseException):
    """Not an Exception: a template engine that catches those would go on."""


class TemplateLimits:
    """Calls the template engine within the limits. Four system calls for a prompt: 10 microseconds."""

    def __init__(self) -> None:
        self._calls = 0
        self._most = 0  # bytes of address space; 0 for no limit
        self._own = resource.getrlimit(resource.RLIMIT_AS)
        self._timed = threading.current_thread() is threading.main_thread()  # no other can be interrupted
        if self._timed:
            signal.signal(signal.SIGVTALRM, _stop)  # stays: nothing else uses the signal, and to set it takes longest

    def call(self, render: Callable[[], T]) -> T:
        """What `render` returns. TemplateStopped at a limit; whatever `render` raises otherwise."""
        if self._calls % _EVERY == 0:
            self._look()
        self._calls += 1
        try:
            return self._limited(render)
        except MemoryError:  # perhaps because the process has grown since the last look
            self._look()
        try:
            return self._limited(render)
        except MemoryError:
            raise TemplateStopped(f"needs more than {BYTES >> 30} GiB for one prompt") from None

    def _look(self) -> None:
        now, (soft, _) = _address_space(), self._own
        most = now + BYTES
        self._most = most if now and (soft == resource.RLIM_INFINITY or soft > most) else 0

    def _limited(self, render: Callable[[], T]) -> T:
        """The time is that of this process, not of the clock: a busy machine or a stopped process stops no template."""
        timed = self._timed and threading.current_thread() is threading.main_thread()
        try:
            if self._most:
                resource.setrlimit(resource.RLIMIT_AS, (self._most, self._own[1]))
            if timed:
                signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                return render()
            finally:
                if timed:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TooSlow:
            raise TemplateStopped(f"takes more than {SECONDS:g} s for one prompt") from None
        finally:
            if self._most:
                resource.setrlimit(resource.RLIMIT_AS, self._own)


@reads_own_files("of the kernel")
def _address_space() -> int:
    """Bytes of this process; 0 where the system does not state it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _stop(*_: Any) -> NoReturn:
    raise _TooSlow
