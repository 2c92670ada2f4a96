"""Closes the runs that were killed: their records, MLflow runs and temporary files. The next run, `store gc --delete` and
`store sync` do so."""

import os
from datetime import UTC, datetime

from pipeline.config.stored import run_config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.registry.tracking import Tracker
from pipeline.store.artifacts import Store
from pipeline.store.processes import signs
from pipeline.store.runs import (
    INTERRUPTED,
    RUNNING,
    RunRecord,
    has_sign_of_life,
    list_runs,
    load_run,
    run_directory,
    run_lock,
    state_of,
)


def close_abandoned(store: Store, progress: Progress) -> list[str]:
    """Write `interrupted` into the records of runs whose processes are gone, close their MLflow runs as KILLED, and delete the
    temporary files of dead processes. Returns the ids of the runs. If MLflow does not answer, `store sync` closes them there."""
    closed = []
    for run in list_runs(store):
        record = load_run(store, run)
        if record is None or record.state != RUNNING or state_of(store, record) != INTERRUPTED:
            continue
        with store.try_lock(run_lock(run)) as free:
            record = load_run(store, run) if free else None  # as it is now: a process may have gone on with it
            if record is not None and record.state == RUNNING and not has_sign_of_life(store, run):
                _close(store, record, progress)
                closed.append(run)
    store.remove_left_behind()
    return closed


def _close(store: Store, record: RunRecord, progress: Progress) -> None:
    directory = run_directory(store, record.id)
    left = signs(directory)
    last = max(path.stat().st_mtime for path in (directory / "run.json", *left))
    record.state, record.ended = INTERRUPTED, datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record.save(store)
    for sign in left:
        sign.unlink(missing_ok=True)
    progress.line(f"run {record.id} was killed at {record.ended}: closed as interrupted")
    if record.mlflow is not None:
        try:
            Tracker(run_config(record), store, progress).sync(record)
        except UsageError as error:  # its config is of another version
            progress.warn(str(error))
    os.utime(directory / "run.json", (last, last))  # `store gc` asks when somebody worked on it
