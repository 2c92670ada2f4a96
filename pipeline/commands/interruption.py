"""Signals that end a command: each becomes a KeyboardInterrupt, as Ctrl-C does, and none is lost."""

import contextlib
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS = 0.1


def listen() -> None:
    """Call it before the work begins, in the main thread."""
    # A scheduler ends a task with SIGTERM: the run record should have "interrupted", as after Ctrl-C.
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a terminal that goes away; `nohup` ignores it
        signal.signal(signal.SIGHUP, _terminate)
    sys.unraisablehook = _not_raised


def _terminate(number: int, frame: FrameType | None) -> None:
    """End the process as Ctrl-C does: by the handler of the moment, because an event loop has one of its own, which ends its
    tasks in order."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # SIGINT is ignored in the background of some shells
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _not_raised(error: "UnraisableHookArgs") -> None:
    """Python drops an exception of a finalizer or of a weak reference's callback. Where an interruption meets one of the many
    that run while libraries are imported, the run would go on; so it is interrupted once more, outside of it."""
    if not issubclass(error.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(error)
        return
    again = threading.Timer(_AGAIN_SECONDS, _interrupt)
    again.daemon = True
    with contextlib.suppress(RuntimeError):  # the process is ending anyway
        again.start()


def _interrupt() -> None:
    """Interrupt by a real signal to the main thread: `_thread.interrupt_main` would wait until a blocking call there has
    returned."""
    number = signal.SIGINT if callable(signal.getsignal(signal.SIGINT)) else signal.SIGTERM
    signal.pthread_kill(threading.main_thread().ident or 0, number)
