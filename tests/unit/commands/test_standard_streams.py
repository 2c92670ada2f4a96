"""Standard streams while a thread still writes: nothing is lost, and the process ends."""

import os
import subprocess
import sys
import threading

from pipeline.commands.standard_streams import _Raw


def test_a_pipe_that_takes_little_at_a_time_gets_all() -> None:
    """Its reader has made it one that does not block."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    sent, found = os.urandom(500_000), list[bytes]()
    reader = threading.Thread(target=lambda: found.extend(iter(lambda: os.read(read, 1000), b"")), daemon=True)
    reader.start()
    written = _Raw(write, "").write(sent)
    os.close(write)
    reader.join()
    os.close(read)
    assert (len(sent), sent) == (written, b"".join(found))


def test_a_thread_that_writes_holds_up_no_end() -> None:
    """To a pipe that nobody reads: with a lock around the stream Python would wait for it, or abort."""
    code = (
        "import select, sys, threading\nfrom pipeline.commands.standard_streams import protect\nprotect()\n"
        "threading.Thread(target=lambda: sys.stderr.write('x' * 10**6), daemon=True).start()\n"
        "while select.select([], [2], [], 0)[1]:\n    pass\nsys.exit(130)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    try:
        assert 130 == process.wait(timeout=60)
    finally:
        process.kill()
        process.communicate()
