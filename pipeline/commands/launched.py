"""Commands under a launcher of several processes (torchrun, srun, `accelerate launch`): the first process runs the command, the
others take part in its trainings and end with it. Otherwise each process would run the whole pipeline on the same store."""

import functools
import os
from collections.abc import Callable
from typing import Any

from pipeline.distillation.launchers import take_launch


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
