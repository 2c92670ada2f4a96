"""Processes of a training: what is said of one that ends, and that none outlives the one that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.distillation import workers
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress


class _Heard(Progress):
    def __init__(self) -> None:
        super().__init__(terminal=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def _run(code: str, control: Any = None) -> list[str]:
    heard = _Heard()
    workers._run([sys.executable, "-c", code], dict(os.environ), control, heard)
    return heard.lines


def test_lines_of_the_workers_are_shown() -> None:
    """Of stdout; what libraries write to stderr is not."""
    assert ["step 1", "step 2"] == _run("import sys; print('step 1'); print('step 2'); print('noise', file=sys.stderr)")


def test_the_first_reason_is_the_error() -> None:
    """A worker that fails breaks the connections of the others, which then fail too."""
    with pytest.raises(UnderstudyError, match=r"^the loss is nan$"):
        _run(
            "import sys; sys.stderr.write('noise\\nunderstudy: the loss is nan\\nunderstudy: process 1\\n'); sys.exit(1)"
        )


def test_a_worker_that_gave_no_reason_shows_its_last_lines() -> None:
    heard = _Heard()
    with pytest.raises(UnderstudyError, match="exit code 3; its last lines are above"):
        workers._run(
            [sys.executable, "-c", "import sys; sys.stderr.write('Traceback\\n'); sys.exit(3)"],
            dict(os.environ),
            None,
            heard,
        )
    assert ["Traceback"] == heard.lines


def test_a_failure_elsewhere_ends_the_worker_here() -> None:
    """Of another process of the launcher."""

    class Control:
        def failure(self) -> str:
            return "no space left"

    began = time.monotonic()
    with pytest.raises(UnderstudyError, match="no space left"):
        _run("import time; time.sleep(600)", Control())
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({0: 1, 1: -9}, "training process 2 of 2 was killed by SIGKILL"),
        ({1: 1, 0: 1}, "training process 1 of 2 has ended with exit code 1"),
        ({0: -signal.SIGTERM, 1: -signal.SIGKILL}, "training process 2 of 2 was killed by SIGKILL"),
        ({0: -signal.SIGTERM, 1: 1}, "training process 2 of 2 has ended with exit code 1"),
    ],
)
def test_a_killed_process_is_named_before_those_that_fail_by_it(codes: dict[int, int], said: str) -> None:
    assert workers._first_end(codes, 2).startswith(f"distill: {said}; checkpoints are kept")


def test_a_worker_ends_with_its_starter() -> None:
    """However the starter ends: the worker's standard input ends with it."""
    worker = (
        "import time\n"
        "from pipeline.commands.training_process import run\n"
        "run(lambda: (print('up', flush=True), time.sleep(600)))"
    )
    starting = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {worker!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", starting],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(workers.__file__).parents[2])},
    )
    assert starter.stdout is not None
    assert "up\n" == starter.stdout.readline()
    starter.send_signal(signal.SIGKILL)
    starter.wait()

    assert "" == starter.stdout.read()  # the worker held the other end
