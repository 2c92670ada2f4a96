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
    """In order, the first before the program has ended, the last also without an end; the caller gets all of them again."""
    heard = list[tuple[str, float]]()
    ended = call([sys.executable, "-c", _SAYS], hear=lambda line: heard.append((line, time.monotonic())))
    assert (3, ["line 0", "line 1", "line 2", "no end of a line"]) == (
        ended.returncode,
        [line for line, _ in heard],
    )
    assert heard[0][1] < heard[-1][1]
    assert "line 0\nline 1\nline 2\nno end of a line" == ended.stderr


def test_more_than_is_read_at_once_is_heard() -> None:
    """3 MiB within a second: a line that is longer than what is read at once, and many short ones after it."""
    long, short = 3 << 19, 1 << 17
    code = f"import sys; sys.stderr.write('a' * {long} + '\\n' + 'line number\\n' * {short} + 'end')"
    heard = list[str]()
    call([sys.executable, "-c", code], hear=heard.append)
    assert ["a" * long, *["line number"] * short, "end"] == heard
