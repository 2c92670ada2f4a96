"""Makes a share of the parts of one stage: what one of many tasks of a scheduler does.

Such a task takes no file lock, neither of the artifact nor of the run, and writes neither the run's record nor MLflow. Of a stage
with several artifacts, such as an examination of each draft, it makes a share of each. The stage without a share makes what is
missing, and commits.
"""

import contextlib
from pathlib import Path

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.running.context import Outcome, StageRun
from pipeline.running.environment import require_device
from pipeline.running.job_inputs import JobInputs
from pipeline.running.jobs import Job
from pipeline.running.parts import Share, drop_parts
from pipeline.running.plan import Step, plan_of
from pipeline.running.stage_list import STAGES, stage_named
from pipeline.store.artifacts import Store
from pipeline.store.presence import Presence
from pipeline.store.processes import signs_of_life
from pipeline.store.runs import RunRecord, run_directory

IN_PARTS = tuple(stage.name for stage in STAGES if stage.in_parts)


def require_in_parts(stage: str, config: Config, option: str = "--shards") -> None:
    """UsageError for a stage that is not made in parts, or not with this config."""
    if stage not in IN_PARTS:
        raise UsageError(f"{option}: {stage} is not made in shards, only {', '.join(IN_PARTS)}; leave it out")
    if stage == "generate" and config.generate.is_served:
        raise UsageError(
            f"{option}: the target is on servers, which one process asks, so `generate` is not made in shards; leave it out (a "
            "scheduler's DAG: set `shards` of the pair to 0)"
        )


class ShareRun:
    """One share of a stage's parts, for the run `record`."""

    def __init__(self, store: Store, record: RunRecord, progress: Progress, run: StageRun, share: Share) -> None:
        self._store, self._run_id, self._progress, self._run, self._share = store, record.id, progress, run, share
        self._plan = plan_of(record, store)
        self._inputs = JobInputs(self._plan, record.id, progress)

    def make(self, name: str) -> None:
        """Make the share in each job of the stage; the artifacts of the stages before it must be in the store."""
        alive = signs_of_life(run_directory(self._store, self._run_id))  # `store gc` sees that the run is worked on
        with Presence(self._store), alive:
            for step in self._plan.steps(last=name):
                if step.job.stage == name:
                    self._make(step)
                elif (artifact := step.find()) is not None:
                    self._plan.take(step, artifact)
                else:
                    raise step.missing()

    def _make(self, step: Step) -> None:
        job = step.job
        if not job.in_parts:
            return
        if step.find() is None:
            require_device(self._plan.config.device, [stage_named(job.stage)])
            work = self._store.open_work(job.stage, step.key, resumable=True)
            if step.find() is None:
                self._make_in(step, work)
                return
            with contextlib.suppress(OSError):  # committed just now, and the directory is a new one
                work.rmdir()
        self._progress.line(f"{job.id}: already in the store")

    def _make_in(self, step: Step, work: Path) -> None:
        self._progress.line(f"{step.job.id}: {step.job.summary}, shards {self._share}")
        try:
            with self._inputs.unchanged(step.job, work):
                outcome = self._run(self._inputs.context(step, work, share=self._share))
            self._say(step.job, outcome)
        except FileNotFoundError:
            if step.find() is None:
                raise
            self._progress.line(f"{step.job.id}: another process has committed it in the meantime")
        if step.find() is not None:
            drop_parts(self._store, work.name)

    def _say(self, job: Job, outcome: Outcome) -> None:
        missing = outcome.notes["missing"]
        others = "1 shard of other tasks is" if missing == 1 else f"{missing} shards of other tasks are"
        rest = f"; {others} not there yet" if missing else ""
        self._progress.line(f"{job.id}: shards {self._share} are there{rest}")
