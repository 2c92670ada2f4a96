"""`python -m pipeline.commands.training_process TASK`: one process of a training. Started by `distillation/workers.py`."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from pipeline.commands import machine_errors, standard_streams
from pipeline.errors import EXIT_FAILURE, UnderstudyError
from pipeline.native.threads import limit_spinning
from pipeline.progress import Progress


def run(work: Callable[[], None]) -> None:
    """Do it, and say on stderr why it failed. The process ends when its standard input does: whoever started it has ended."""
    standard_streams.protect()
    limit_spinning()
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # at once, also in the middle of an exchange with a process that is gone
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        work()
    except UnderstudyError as error:
        _fail(str(error).splitlines()[0])
    except Exception as error:
        if (known := machine_errors.explain(error)) is not None:
            _fail(f"distill: {known}")
        for line in traceback.format_exc().splitlines():
            Progress().line(line)
        _end(EXIT_FAILURE)


def _fail(why: str) -> None:
    Progress().line(f"understudy: {why}")
    _end(EXIT_FAILURE)


def _end(code: int) -> None:
    """Without the handlers at a Python exit, which wait for the other processes."""
    os._exit(code)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    _end(EXIT_FAILURE)


def _work() -> None:
    from pipeline.distillation.worker import work

    work(Path(sys.argv[1]))


if __name__ == "__main__":
    run(_work)
