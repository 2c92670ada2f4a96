"""Which artifacts a run needs: those in its record, and those whose keys follow from its config and its pinned inputs."""

from dataclasses import dataclass

from pipeline.config.loading import parse_stored_config
from pipeline.errors import UnderstudyError
from pipeline.models.stored_pair import PAIR_FILE
from pipeline.running.jobs import Job, expand
from pipeline.running.pair_checks import apply_pair
from pipeline.running.stage_list import STAGE_NAMES
from pipeline.store.artifacts import MANIFEST, Store, read_manifest
from pipeline.store.files import read_json
from pipeline.store.runs import RunRecord


@dataclass(frozen=True)
class Needs:
    """Names of directories under `artifacts/`. In the stages `unknown` the run needs more: their keys depend on artifacts that
    are not built yet."""

    artifacts: frozenset[str]
    unknown: frozenset[str]


def needs_of(store: Store, record: RunRecord) -> Needs:
    """A run that starts late, or has just begun, has few artifacts in its record but reads those of all stages."""
    found = {f"{entry['stage']}-{entry['key']}" for entry in record.jobs.values()}
    try:
        config = parse_stored_config(record.config, f"run {record.id}")
        walk = _Walk(store, record)
        jobs = expand(config, record.outside)
        walk.visit(jobs[0])
        pair = walk.directories.get(jobs[0].id)
        if pair is not None and (store.root / "artifacts" / pair / PAIR_FILE).exists():
            config, _ = apply_pair(config, read_json(store.root / "artifacts" / pair / PAIR_FILE))
            jobs = expand(config, record.outside)
        for job in jobs[1:]:
            walk.visit(job)
    except UnderstudyError:  # a record of another version, or a damaged artifact
        return Needs(frozenset(found), frozenset(STAGE_NAMES))
    return Needs(frozenset(found | set(walk.directories.values())), frozenset(walk.unknown))


class _Walk:
    """Goes through the jobs as the runner does, but builds nothing."""

    def __init__(self, store: Store, record: RunRecord) -> None:
        self.store, self.record = store, record
        self.directories: dict[str, str] = {}
        self.unknown: set[str] = set()
        self._keys: dict[str, str] = {}

    def visit(self, job: Job) -> None:
        digests = {name: self._digest(reference) for name, reference in job.reads.items()}
        known = {name: digest for name, digest in digests.items() if digest is not None}
        if len(known) < len(digests):
            self.unknown.add(job.stage)
            return
        self._keys[job.id] = job.key(known)
        self.directories[job.id] = f"{job.stage}-{self._keys[job.id]}"

    def _digest(self, reference: str) -> str | None:
        source, _, name = reference.partition("#")
        if source == "outside":
            return str(self.record.outside[name]["digest"]) if name in self.record.outside else None
        if not name or source not in self._keys:
            return self._keys.get(source)
        directory = self.store.root / "artifacts" / self.directories[source]
        return read_manifest(directory)["provides"].get(name) if (directory / MANIFEST).exists() else None
