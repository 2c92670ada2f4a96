"""Other programs: what one says is heard while it runs."""

import sys
import time

from pipeline.store.programs import call

_SAYS = """
import sys, time
for number in range(3):
    sys.stderr.write(f"line {number}\\n")
    sys.stderr.flush()
    time.sleep(0.6)
sys.stderr.write("no end of a line")
sys.exit(3)
"""


def test_lines_are_heard_as_they_come() -> None:
    """Whole ones, in order, the first before the program has ended; nothing of what it says is lost for the caller."""
    heard = list[tuple[str, float]]()
    ended = call([sys.executable, "-c", _SAYS], hear=lambda line: heard.append((line, time.monotonic())))
    assert (3, ["line 0", "line 1", "line 2"]) == (ended.returncode, [line for line, _ in heard])
    assert heard[0][1] < heard[-1][1]
    assert "line 0\nline 1\nline 2\nno end of a line" == ended.stderr
