"""Makes a share of the parts of one stage: what one of many tasks of a scheduler does.

Such a task takes no file lock, neither of the artifact nor of the run, and writes neither the run's record nor MLflow. Of a stage
with several artifacts, such as an examination of each draft, it makes a share of each. The stage without a share makes what is
missing, and commits.
"""

import contextlib
from typing import Any

from pipeline.config.stored import given_config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.registry.registry import registry_for
from pipeline.running.after_stage import after_stage
from pipeline.running.context import Outcome, StageContext, StageRun, resources_of
from pipeline.running.device_check import require_device
from pipeline.running.execution.parts import Share, drop_parts
from pipeline.running.job_inputs import JobInputs
from pipeline.running.jobs import Job, expand
from pipeline.running.preview import not_built
from pipeline.running.stage_list import STAGE_NAMES, STAGES, stage_named
from pipeline.store.artifacts import Store
from pipeline.store.presence import Presence
from pipeline.store.processes import signs_of_life
from pipeline.store.runs import RunRecord, run_directory

IN_PARTS = tuple(stage.name for stage in STAGES if stage.in_parts)


def require_in_parts(stage: str) -> None:
    """UsageError for a stage that is not made in parts."""
    if stage not in IN_PARTS:
        raise UsageError(f"--shards: {stage} is not made in shards, only {', '.join(IN_PARTS)}; leave it out")


class ShareRun:
    """One share of a stage's parts, for the run `record`."""

    def __init__(self, store: Store, record: RunRecord, progress: Progress, run: StageRun, share: Share) -> None:
        self._store, self._record, self._progress, self._run, self._share = store, record, progress, run, share
        self._config = given_config(record)
        self._registry = registry_for(self._config, store)
        self._inputs = JobInputs(self._config, store, self._registry, record.outside)

    def make(self, name: str) -> None:
        """Make the share in each job of the stage; the artifacts of the stages before it must be in the store."""
        alive = signs_of_life(run_directory(self._store, self._record.id))  # `store gc` sees that the run is worked on
        with Presence(self._store.root), alive:
            jobs, place = expand(self._config, self._record.outside), 0
            while STAGE_NAMES.index(jobs[place].stage) <= STAGE_NAMES.index(name):
                self._take(jobs[place], jobs[place].stage == name)
                if stage_named(jobs[place].stage).completes_config:
                    jobs = expand(self._config, self._record.outside)
                place += 1

    def _take(self, job: Job, is_asked: bool) -> None:
        if is_asked and not job.in_parts:
            return
        digests = self._inputs.digests(job)
        artifact = self._store.find(job.stage, job.key(digests))
        if artifact is not None:
            self._inputs.add(job.id, artifact)
            if stage_named(job.stage).completes_config:
                self._config = after_stage(job.stage, self._config, artifact.path).config
            if is_asked:
                self._progress.line(f"{job.id}: already in the store")
        elif is_asked:
            self._make(job, digests)
        else:
            raise not_built(job, self._store)

    def _make(self, job: Job, digests: dict[str, str]) -> None:
        require_device(self._config.device, [stage_named(job.stage)])
        key = job.key(digests)
        work = self._store.open_work(job.stage, key, resumable=True)
        if self._store.find(job.stage, key) is not None:  # committed just now, and the directory is a new one
            with contextlib.suppress(OSError):
                work.rmdir()
            self._progress.line(f"{job.id}: already in the store")
            return
        self._progress.line(f"{job.id}: {job.summary}, shards {self._share}")
        self._inputs.check_outside(job)
        context = StageContext[Any](
            settings=job.settings,
            resources=resources_of(self._config, self._registry),
            job_id=job.id,
            inputs=self._inputs.paths(job),
            digests=digests,
            facts=self._inputs.facts(job),
            out=work,
            store=self._store.root,
            run_id=self._record.id,
            progress=self._progress,
            share=self._share,
        )
        try:
            outcome = self._run(context)
            self._inputs.check_still_outside(job, work)
            self._say(job, outcome)
        except FileNotFoundError:
            if self._store.find(job.stage, key) is None:
                raise
            self._progress.line(f"{job.id}: another process has committed it in the meantime")
        if self._store.find(job.stage, key) is not None:
            drop_parts(self._store.root, work.name)

    def _say(self, job: Job, outcome: Outcome) -> None:
        missing = outcome.notes["missing"]
        others = "1 shard of other tasks is" if missing == 1 else f"{missing} shards of other tasks are"
        rest = f"; {others} not there yet" if missing else ""
        self._progress.line(f"{job.id}: shards {self._share} are there{rest}")
