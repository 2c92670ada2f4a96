"""`python -m pipeline.commands.training_processes N TASK`: the launcher of a training's processes on this machine."""

import sys
from pathlib import Path

from pipeline.commands.training_process import run


def _launch() -> None:
    from pipeline.distillation.workers import launch_all

    launch_all(int(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    run(_launch)
