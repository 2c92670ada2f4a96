"""The state of a run as it is now. A killed run is recorded as `running` until it is closed (`running/abandoned.py`), so a state
that is shown comes from here."""

from pipeline.store.artifacts import Store
from pipeline.store.processes import is_alive, signs
from pipeline.store.runs import RunRecord, run_directory, run_lock

RUNNING, INTERRUPTED, STOPPED = "running", "interrupted", "stopped"


def is_worked_on(store: Store, run_id: str) -> bool:
    """Whether a process is working on the run: it has the run's lock, or it has left a sign of life and has not ended."""
    return store.is_locked(run_lock(run_id)) or has_sign_of_life(store, run_id)


def has_sign_of_life(store: Store, run_id: str) -> bool:
    """Whether a process that works on the run has not ended, by the signs that it left."""
    return any(map(is_alive, signs(run_directory(store, run_id))))


def state_of(store: Store, record: RunRecord) -> str:
    """`record.state`, but `interrupted` for a run that is recorded as running and that no process works on, and `running` for one
    that has stopped before a stage of which tasks of a scheduler make shards: these leave the record as it is."""
    if record.state == STOPPED and has_sign_of_life(store, record.id):
        return RUNNING
    if record.state != RUNNING or is_worked_on(store, record.id):
        return record.state
    return INTERRUPTED
