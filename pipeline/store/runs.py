"""The record of one run, `runs/<id>/run.json`: its config, its pinned inputs, its jobs and its result."""

import contextlib
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.nearest import did_you_mean
from pipeline.progress import Progress
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import write_json
from pipeline.store.parsing import Number, Text, format_of, stored
from pipeline.store.processes import is_alive, signs

GC_LOCK = "gc"  # held by `store gc` while it decides and deletes, and shared by a run while it appears
# A killed run is recorded as running until it is closed (`running/abandoned.py`), so a state that is shown is that of `state_of`.
RUNNING, INTERRUPTED, STOPPED = "running", "interrupted", "stopped"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,120}")


# A stage and a key: together they name a directory.
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][\w.-]{0,80}$")]


@stored(kw_only=False)
class OutsideInput:
    """One input from outside the store, pinned to a digest. `path` is None until it has been fetched."""

    digest: Text
    path: Text | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@stored
class JobEntry:
    """A job that a run has done, or has found done."""

    stage: Name
    part: Text = ""
    task: dict[str, Any] = field(default_factory=dict)
    key: Name
    state: Text = "done"  # done | skipped: its artifact was in the store already
    seconds: Number = 0.0
    # Of a job without an artifact, whose files are in the run's own directory; None for the others.
    figures: dict[str, Number] | None = None
    notes: dict[str, Any] | None = None

    @property
    def directory_name(self) -> str:
        """The name of its artifact's directory."""
        return f"{self.stage}-{self.key}"


@stored(frozen=False)
class Uploaded:
    """What MLflow has of a run."""

    uri: Text | None  # None: the database inside the store
    experiment_id: Text
    run_id: Text
    synced: dict[str, str] = field(default_factory=dict)  # job id -> its state and key
    datasets: dict[str, str] = field(default_factory=dict)  # job id -> key
    page: Text = ""  # SHA-256 of the review page
    summary: Text = ""  # hash of name, tags and description


@stored(
    frozen=False,
    name="record of a run",
    schema=1,
    remedy="move its directory out of the store, or use the version of Understudy that wrote it",
)
class RunRecord:
    """One run. Saved after every change, so that the record of a killed run is complete up to that point."""

    id: Text
    name: Text
    created: Text
    config: dict[str, Any]  # as it was given
    resolved: dict[str, Any] | None = None  # with what the pair decided; None before that
    outside: dict[str, OutsideInput]  # the pinned inputs, by name
    jobs: dict[str, JobEntry] = field(default_factory=dict)  # by id
    state: Text = "running"  # running | stopped (by --until) | finished | refused | failed | interrupted
    failure: str = ""  # the job that failed, and why
    ended: str = ""  # when it took that state; empty while it runs
    decision: dict[str, Any] | None = None  # without its figures, which are in the gate's artifact
    mlflow: Uploaded | None = None

    @property
    def promotion(self) -> dict[str, Any]:
        """The notes of `promote`: result, name, version; empty before it has run."""
        entry = self.jobs.get("promote")
        return {} if entry is None or entry.notes is None else entry.notes

    def save(self, store: Store) -> None:
        """Write the record. Jobs that another process has recorded in the meantime are taken over, because several processes may
        work on one run, such as two tasks of a scheduler."""
        path = _record_file(store, self.id)
        with store.changing(path):
            if path.exists():
                with contextlib.suppress(UnderstudyError):  # a damaged one is replaced
                    self.jobs |= {job: entry for job, entry in _read_record(path).jobs.items() if job not in self.jobs}
            write_json(path, self._fields())

    def _fields(self) -> dict[str, Any]:
        """As `asdict`, which copies the configs too: most of the time of a save."""
        outside, jobs = ({name: vars(one) for name, one in of.items()} for of in (self.outside, self.jobs))
        return vars(self) | {"outside": outside, "jobs": jobs, "mlflow": self.mlflow and vars(self.mlflow)}


_told: set[tuple[str, str]] = set()  # records that were skipped, and why


def new_run_id(name: str) -> str:
    """Sorts by time; unique among runs started in the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name}-{secrets.token_hex(2)}"


def run_directory(store: Store, run_id: str) -> Path:
    if not _ID.fullmatch(run_id):
        raise UsageError(f"run {run_id!r}: a run id is letters, digits and ._:+- (at most 121)")
    return store.runs / run_id


def run_lock(run_id: str) -> str:
    """The name of the lock that every process working on a run shares."""
    return f"run-{run_id}"


def load_run(store: Store, run_id: str) -> RunRecord | None:
    """The record of `run_id`, or None if there is none yet."""
    path = _record_file(store, run_id)
    return _read_record(path) if path.exists() else None


def is_run(store: Store, word: str) -> bool:
    """Whether the store has a run of this id; its record is not read."""
    return _ID.fullmatch(word) is not None and _record_file(store, word).exists()


def readable_run(store: Store, run_id: str) -> RunRecord | None:
    """The record, as by `load_run`, for who can do without it: one that cannot be read is named on stderr."""
    path = _record_file(store, run_id)
    return _read_or_skip(path) if path.exists() else None


def _record_file(store: Store, run_id: str) -> Path:
    return run_directory(store, run_id) / "run.json"


def _read_record(path: Path) -> RunRecord:
    """UnderstudyError names a file that is not the record of the run that its directory is named after."""
    record = format_of(RunRecord).read(path)
    if record.id != path.parent.name:
        raise UnderstudyError(
            f"{path}: the record of run {record.id!r}, so its directory was copied or renamed; undo that"
        )
    return record


def list_runs(store: Store) -> list[str]:
    """Ids of the runs of the store whose records can be read, oldest first by creation time. The others are named on stderr."""
    return [record.id for record in read_runs(store)]


def read_runs(store: Store) -> list[RunRecord]:
    """The records of the runs that `list_runs` lists."""
    records = [record for path in store.runs.glob("*/run.json") if (record := _read_or_skip(path)) is not None]
    return sorted(records, key=lambda record: (record.created, record.id))


def _read_or_skip(path: Path) -> RunRecord | None:
    try:
        return _read_record(path)
    except UnderstudyError as error:
        if (told := (str(path), str(error))) not in _told:  # a command reads the records more than once
            _told.add(told)
            Progress().warn(f"run {path.parent.name} is skipped: {error}")
        return None


def unreadable_runs(store: Store) -> list[str]:
    """Ids of the runs whose records are damaged or of another version."""
    known = set(list_runs(store))
    return sorted({path.parent.name for path in store.runs.glob("*/run.json")} - known)


def require_run(store: Store, run_id: str | None, needs: Collection[str] = ()) -> RunRecord:
    """The run called `run_id`, or the latest that has built the jobs `needs`; UsageError where there is none."""
    if run_id not in (None, "latest") and (named := load_run(store, str(run_id))) is not None:
        return named
    known = read_runs(store)
    if not known and (damaged := unreadable_runs(store)):
        raise UsageError(f"{store.root}: no run here can be read; see why above; it has {', '.join(damaged[:3])}")
    if not known:
        raise UsageError(
            f"{store.root}: no runs here yet; start one with `understudy run CONFIG` or name another --store"
        )
    if run_id not in (None, "latest"):
        raise UsageError(
            f"run {run_id}: not in {store.root}{did_you_mean(str(run_id), [record.id for record in known])}; the latest is "
            f"{known[-1].id}; `understudy runs` lists them"
        )
    for record in reversed(known):
        if all(is_built(store, record, job_id) for job_id in needs):
            return record
    raise UsageError(f"{store.root}: no run here has built {', '.join(needs)}; finish one with `understudy run`")


def is_built(store: Store, record: RunRecord, job_id: str) -> bool:
    """Whether the store has the artifact of the run's job `job_id`."""
    entry = record.jobs.get(job_id)
    return entry is not None and store.directory(entry.stage, entry.key).is_dir()


def shared_jobs(record: RunRecord) -> dict[str, str]:
    """Jobs whose artifact is that of another job of the run, such as step times with drafts of equal shape, with that job: the
    one that built it, or else the first by name."""
    first, shared = dict[tuple[str, str], str](), dict[str, str]()
    for job, entry in sorted(record.jobs.items(), key=lambda item: (item[1].state != "done", item[0])):
        owner = first.setdefault((entry.stage, entry.key), job)
        if owner != job:
            shared[job] = owner
    return shared


def find_built(store: Store, record: RunRecord, job_id: str) -> Artifact:
    """The artifact that job `job_id` built, by `record`; UnderstudyError if it is gone."""
    entry = record.jobs.get(job_id)
    artifact = store.find(entry.stage, entry.key) if entry else None
    if artifact is None:
        raise UnderstudyError(f"run {record.id} has no {job_id}; finish it with `understudy run`")
    return artifact


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
