"""Which artifacts a run needs: those in its record, and those whose keys follow from its config and its pinned inputs."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.stored import given_config
from pipeline.errors import UnderstudyError
from pipeline.running.after_stage import after_stage
from pipeline.running.digests import digest_of
from pipeline.running.jobs import Job, expand
from pipeline.running.stage_list import STAGE_NAMES, stage_named
from pipeline.store.artifacts import MANIFEST, Artifact, Store, read_manifest
from pipeline.store.runs import RunRecord


@dataclass(frozen=True)
class Needs:
    """Names of directories under `artifacts/`. In the stages `unknown` the run needs more: their keys depend on artifacts that
    are not built yet."""

    artifacts: frozenset[str]
    unknown: frozenset[str]


def needs_of(store: Store, record: RunRecord) -> Needs:
    """A run that starts late, or has just begun, has few artifacts in its record but reads those of all stages."""
    found = {entry.directory_name for entry in record.jobs.values()}
    try:
        config = given_config(record)
        walk, jobs, done = _Walk(store, record), expand(config, record.outside), 0
        while done < len(jobs):
            job = jobs[done]
            artifact = walk.visit(job)
            if artifact is not None and stage_named(job.stage).completes_config:
                config = after_stage(job.stage, config, artifact).config
                jobs = expand(config, record.outside)
            done += 1
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

    def visit(self, job: Job) -> Path | None:
        """The job's artifact, if it is in the store."""
        job = job.decided(self._digest)
        digests = {name: self._digest(reference) for name, reference in job.reads.items()}
        known = {name: digest for name, digest in digests.items() if digest is not None}
        if len(known) < len(digests):
            self.unknown.add(job.stage)
            return None
        self._keys[job.id] = job.key(known)
        self.directories[job.id] = f"{job.stage}-{self._keys[job.id]}"
        directory = self.store.directory(job.stage, self._keys[job.id])
        return directory if (directory / MANIFEST).exists() else None

    def _digest(self, reference: str) -> str | None:
        source, _, name = reference.partition("#")
        if source == "outside":
            return self.record.outside[name].digest if name in self.record.outside else None
        if not name or source not in self._keys:
            return self._keys.get(source)
        directory = self.store.root / "artifacts" / self.directories[source]
        return (
            digest_of(Artifact(directory, read_manifest(directory)), name) if (directory / MANIFEST).exists() else None
        )
