"""The record of one run, `runs/<id>/run.json`: its config, its pinned inputs, its jobs and its result."""

import re
import secrets
import time
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import damaged, read_json, write_json

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,120}")


@dataclass(kw_only=True)
class RunRecord:
    """One run. Saved after every change, so that the record of a killed run is complete up to that point."""

    id: str
    name: str
    created: str
    config: dict[str, Any]
    outside: dict[str, dict[str, Any]]  # name -> {"digest", "path", "facts"}: the pinned inputs
    # job id -> {"stage", "part", "task", "key", "state", "seconds"}
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: str = "running"  # running | stopped (by --until) | finished | refused | failed | interrupted
    decision: dict[str, Any] | None = None
    mlflow: dict[str, Any] = field(default_factory=dict)

    def save(self, store: Store) -> None:
        write_json(run_directory(store, self.id) / "run.json", asdict(self))


def new_run_id(name: str) -> str:
    """Sorts by time; unique among runs started in the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name}-{secrets.token_hex(2)}"


def run_directory(store: Store, run_id: str) -> Path:
    if not _ID.fullmatch(run_id):
        raise UsageError(f"run {run_id!r}: a run id is letters, digits and ._:+- (at most 121)")
    return store.runs / run_id


def load_run(store: Store, run_id: str) -> RunRecord | None:
    """The record of `run_id`, or None if there is none yet."""
    path = run_directory(store, run_id) / "run.json"
    return _read_record(path) if path.exists() else None


def _read_record(path: Path) -> RunRecord:
    """UnderstudyError names a file that is not a record."""
    found = read_json(path)
    known = {one.name: one for one in fields(RunRecord)}
    if not isinstance(found, dict) or not known.keys() >= found.keys():
        raise damaged(path, "not the record of a run")
    for name, one in known.items():
        if name not in found and one.default is MISSING and one.default_factory is MISSING:
            raise damaged(path, f"'{name}' is missing")
    record = RunRecord(**found)
    texts = (record.id, record.name, record.created, record.state)
    nested = (record.config, record.outside, record.jobs, record.mlflow)
    entries = (
        (*record.outside.values(), *record.jobs.values()) if all(isinstance(one, dict) for one in nested) else (None,)
    )
    if not all(isinstance(one, str) for one in texts) or not all(isinstance(one, dict) for one in entries):
        raise damaged(path, "a value has the wrong type")
    if any(not isinstance(job.get(name), str) for job in record.jobs.values() for name in ("stage", "key")):
        raise damaged(path, "a job without a stage and a key")
    return record


def list_runs(store: Store) -> list[str]:
    """Ids of all runs of the store, oldest first by creation time."""
    records = sorted(store.runs.glob("*/run.json"), key=lambda path: _read_record(path).created)
    return [path.parent.name for path in records]


def require_run(store: Store, run_id: str | None) -> RunRecord:
    """The run called `run_id`, or the latest; UsageError where there is none."""
    known = list_runs(store)
    if not known:
        raise UsageError(
            f"{store.root}: no runs here yet; start one with `understudy run CONFIG` or name another --store"
        )
    chosen = known[-1] if run_id in (None, "latest") else str(run_id)
    record = load_run(store, chosen)
    if record is None:
        raise UsageError(f"run {chosen}: not in {store.root}; the latest is {known[-1]}")
    return record


def find_built(store: Store, record: RunRecord, job_id: str) -> Artifact:
    """The artifact that `record` says job `job_id` built; UnderstudyError if it is gone."""
    entry = record.jobs.get(job_id)
    artifact = store.find(entry["stage"], entry["key"]) if entry else None
    if artifact is None:
        raise UnderstudyError(f"run {record.id} has no {job_id}; finish it with `understudy run`")
    return artifact
