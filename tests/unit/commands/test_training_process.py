"""A process of a training says on stderr why it failed, in one line where that is known, and ends with code 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline

ROOT = Path(pipeline.__file__).parents[1]


def _run(work: str) -> tuple[int, list[str]]:
    code = (
        "from pipeline.commands.training_process import run\n"
        "from pipeline.errors import UnderstudyError\n"
        f"def work():\n    {work}\n"
        "run(work)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    return process.returncode, said.splitlines()


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise UnderstudyError('the loss is nan')", 1, "understudy: the loss is nan"),
        (
            "raise OSError(28, 'No space left on device')",
            1,
            "understudy: distill: the store: no space left on the disk",
        ),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
    ],
    ids=["done", "mistake", "full disk", "bug"],
)
def test_a_process_ends_with_what_it_says(work: str, code: int, said: str) -> None:
    """A bug keeps its traceback, and is no reason of one line."""
    found, lines = _run(work)

    assert code == found
    assert said == "" if not lines else lines[-1].startswith(said)
    assert (said.startswith("understudy: "), said.startswith("understudy: ")) == (
        any(line.startswith("understudy: ") for line in lines),
        len(lines) == 1,
    )
