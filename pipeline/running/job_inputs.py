"""What a job reads, as its stage receives it: artifacts that are in the store, and pinned inputs from outside. Builds nothing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.registry.registry import registry_for
from pipeline.running.champion_check import require_same_tokenizer
from pipeline.running.context import StageContext, resources_of
from pipeline.running.inputs import PinnedInputs, is_prompts, prompts_here
from pipeline.running.jobs import SHAPE, Job
from pipeline.running.parts import Share, drop_parts
from pipeline.running.plan import Plan, Step


class JobInputs:
    """The inputs of the jobs of a run, by their references (`jobs.py`)."""

    def __init__(self, plan: Plan, run_id: str, progress: Progress) -> None:
        self._plan, self._run_id, self._progress = plan, run_id, progress
        self._registry = registry_for(plan.config, plan.store)
        self._pinned = PinnedInputs(plan.config, plan.outside)
        self._hashed: set[Path] = set()

    def context(
        self, step: Step, out: Path, share: Share | None = None, force_promote: bool = False
    ) -> StageContext[Any]:
        """What the stage gets. An artifact is hashed before it is first read in this process."""
        reads = step.job.reads
        return StageContext(
            settings=step.job.settings,
            resources=resources_of(self._plan.config, self._registry),
            job_id=step.job.id,
            inputs={name: self._path(reference) for name, reference in reads.items()},
            digests=step.digests,
            facts={name: self._facts(reference) for name, reference in reads.items()},
            out=out,
            store=self._plan.store,
            run_id=self._run_id,
            progress=self._progress,
            force_promote=force_promote,
            share=share,
        )

    def check_champion(self, pair: Path) -> None:
        """UsageError where the champion cannot be examined with the pair in this artifact."""
        champion = self._registry.champion_at(str(self._plan.outside["champion"].facts["version"]))
        files = self._plan.store.champions / champion.digest
        require_same_tokenizer(self._plan.config, pair, self._registry, champion, files)

    @contextmanager
    def unchanged(self, job: Job, work: Path) -> Iterator[None]:
        """The outside files that a job reads are those of its key, before and after. Where one has changed meanwhile, `work` is
        deleted: it was made from other files than those in its key, and nothing may resume from it."""
        self._check_outside(job)
        yield
        try:
            self._check_outside(job)
        except UsageError as error:
            shutil.rmtree(work, ignore_errors=True)
            drop_parts(self._plan.store, work.name)
            raise UsageError(f"{job.id}: while it was running, {error}") from None

    def _check_outside(self, job: Job) -> None:
        """Models stay where they are: those of `pair#target` are the input `target`."""
        for reference in job.reads.values():
            source, _, name = reference.partition("#")
            if source in ("outside", "pair") and name in self._plan.outside:
                self._pinned.check(name)

    def _path(self, reference: str) -> Path:
        source, _, name = reference.partition("#")
        if source != "outside":
            artifact = self._plan.artifact(source)
            if artifact.path not in self._hashed:
                artifact.check_hashes()
                self._hashed.add(artifact.path)
            return artifact.path
        name = name.removeprefix(SHAPE)
        outside = self._plan.outside[name]
        if name == "champion":
            champion = self._registry.champion_at(outside.facts["version"])
            return self._registry.fetch(champion, self._plan.store.champions / champion.digest)
        return prompts_here(self._plan.config, name) if is_prompts(name) else Path(outside.path or ".")

    def _facts(self, reference: str) -> dict[str, Any]:
        source, _, name = reference.partition("#")
        return self._plan.outside[name.removeprefix(SHAPE)].facts if source == "outside" else {}
