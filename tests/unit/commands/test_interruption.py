"""Signals that end a command, wherever they find it."""

import subprocess
import sys

import pytest

_LOST = """
import signal, time, weakref
from pipeline.commands.interruption import listen

listen()

class Imported:
    pass

one = Imported()
reference = weakref.ref(one, lambda _: signal.raise_signal(signal.{name}))
{before}
del one
time.sleep(600)
print("it went on")
"""


@pytest.mark.parametrize(
    ("name", "before"),
    [("SIGINT", ""), ("SIGTERM", ""), ("SIGHUP", ""), ("SIGTERM", "signal.signal(signal.SIGINT, signal.SIG_IGN)")],
    ids=["Ctrl-C", "scheduler", "terminal gone", "in the background"],
)
def test_an_interruption_that_python_drops_comes_again(name: str, before: str) -> None:
    """A KeyboardInterrupt in the callback of a weak reference is no exception of the program. The next one ends a wait."""
    code = _LOST.format(name=name, before=before)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (True, "") == ("KeyboardInterrupt" in ended.stderr.splitlines()[-1], ended.stdout), ended.stderr
    assert "ignored" not in ended.stderr


def test_other_errors_of_finalizers_are_still_told() -> None:
    """They may point to a defect."""
    code = "from pipeline.commands.interruption import listen\nlisten()\nclass A:\n    def __del__(self): 1 / 0\nA()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (0, True) == (ended.returncode, "ZeroDivisionError" in ended.stderr)
