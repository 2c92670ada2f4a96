"""Commands under a launcher of several processes (torchrun, srun, `accelerate launch`). Of a command that trains, the first
process runs it, and the others take part in its trainings and end with it. Any other is run by the first process alone.
Otherwise each process would do the same work on the same store."""

import functools
import os
from collections.abc import Callable
from typing import Any

from pipeline.distillation.launchers import take_launch
from pipeline.progress import Progress


def led_by_first(command: Callable[..., None]) -> Callable[..., None]:
    """`command` under a launcher; without one, `command` as it is. So are the tasks of a scheduler, which make shares of the
    shards: srun may start all of them, and each works alone."""

    @functools.wraps(command)
    def led(**options: Any) -> None:
        launch = None if options.get("shards") is not None else take_launch(os.environ)
        if launch is None:
            command(**options)
            return
        from pipeline.distillation.processes import Control
        from pipeline.distillation.workers import leading, serve

        control = Control(launch)
        if launch.rank > 0:
            serve(control)
            return
        with leading(control):
            command(**options)

    return led


def in_first_alone(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, which has no work for other processes: those that a launcher has started end at once, without an error."""

    @functools.wraps(command)
    def alone(**options: Any) -> None:
        launch = take_launch(os.environ)
        if launch is not None and launch.rank > 0:
            return
        if launch is not None:
            Progress().warn(
                f"the launcher has started {launch.size} processes, and only `run` and `stage` have work for several: this one "
                "works alone"
            )
        command(**options)

    return alone
