"""`understudy watch` without --once: a look every `watch.interval_seconds`, until the process is stopped."""

import time
from typing import NoReturn

from pipeline.errors import UnderstudyError
from pipeline.watch.acting import Watch
from pipeline.watch.lines import status_line
from pipeline.watch.metrics import WatchMetrics

_SAID_EVERY = 3600.0  # seconds


def watch_forever(watch: Watch) -> NoReturn:
    """A look that fails is told, and the next one is made. A full disk is a failed look. The state is told at the first two
    looks, after a failure, and every hour while nothing changes: silence is no sign of life."""
    settings, metrics = watch.config.watch, WatchMetrics(watch.name)
    if settings.metrics is not None:
        metrics.serve(settings.metrics)
    failed, looks, said = "", 0, 0.0
    while True:
        began, next_look = time.time(), time.monotonic() + settings.interval_seconds
        try:
            observation = watch.look(began)
            metrics.show(watch.findings, observation, settings)
            looks += 1
            if looks <= 2 or failed or began - said >= _SAID_EVERY:
                watch.progress.line(f"{watch.name}: {status_line(watch.findings, settings)}")
                said = began
            failed = ""
        except (UnderstudyError, OSError) as error:
            if str(error) != failed:
                watch.progress.warn(str(error))
            failed = str(error)
        # By a clock that nobody sets: one that is put back by an hour would let the watch sleep for it.
        time.sleep(max(0.0, next_look - time.monotonic()))
