"""What a job reads: artifacts that are in the store, and pinned inputs from outside. Builds nothing."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.registry.registry import Registry
from pipeline.running.digests import digest_of
from pipeline.running.execution.parts import drop_parts
from pipeline.running.inputs import PinnedInputs
from pipeline.running.jobs import Job
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.runs import OutsideInput


class JobInputs:
    """The inputs of a run's jobs, by their references (`jobs.py`). `outside`: of the run's record."""

    def __init__(self, config: Config, store: Store, registry: Registry, outside: Mapping[str, OutsideInput]) -> None:
        self._store, self._registry, self._outside = store, registry, outside
        self._pinned = PinnedInputs(config, outside)
        self._built: dict[str, Artifact] = {}
        self._hashed: set[Path] = set()

    def add(self, job_id: str, artifact: Artifact) -> None:
        """A job that is done, which later ones may read."""
        self._built[job_id] = artifact

    def digest(self, reference: str) -> str:
        """The digest of an input, which enters the key."""
        source, _, name = reference.partition("#")
        if source == "outside":
            return self._outside[name].digest
        digest = digest_of(self._built[source], name)
        assert digest is not None, f"{source} provides no {name}"
        return digest

    def digests(self, job: Job) -> dict[str, str]:
        """Of all that a job reads, by the name of the input."""
        return {name: self.digest(reference) for name, reference in job.reads.items()}

    def paths(self, job: Job) -> dict[str, Path]:
        """As `digests`. An artifact is hashed before it is first read in this process."""
        return {name: self._path(reference) for name, reference in job.reads.items()}

    def facts(self, job: Job) -> dict[str, Any]:
        """As `digests`: what is known of inputs from outside."""
        return {name: self._facts(reference) for name, reference in job.reads.items()}

    def check_outside(self, job: Job) -> None:
        """The outside files that a job reads. Models stay where they are: those of `pair#target` are the input `target`."""
        for reference in job.reads.values():
            source, _, name = reference.partition("#")
            if source in ("outside", "pair") and name in self._outside:
                self._pinned.check(name)

    def check_still_outside(self, job: Job, work: Path) -> None:
        """As `check_outside`, once the job has read them. Where one has changed, `work` is deleted: it was made from other files
        than its key says, and nothing may resume from it."""
        try:
            self.check_outside(job)
        except UsageError as error:
            shutil.rmtree(work, ignore_errors=True)
            drop_parts(self._store.root, work.name)
            raise UsageError(f"{job.id}: while it was running, {error}") from None

    def _path(self, reference: str) -> Path:
        source, _, name = reference.partition("#")
        if source != "outside":
            artifact = self._built[source]
            if artifact.path not in self._hashed:
                artifact.check_hashes()
                self._hashed.add(artifact.path)
            return artifact.path
        if name == "champion":
            champion = self._registry.champion_at(self._outside[name].facts["version"])
            return self._registry.fetch(champion, self._store.root / "champions" / champion.digest)
        return Path(self._outside[name].path or ".")

    def _facts(self, reference: str) -> dict[str, Any]:
        source, _, name = reference.partition("#")
        return self._outside[name].facts if source == "outside" and name in self._outside else {}
