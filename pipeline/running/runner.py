"""Runs the jobs of a plan: find or build each artifact, keep the record, never build one artifact twice at the same time.

Does not depend on what a stage does: it is given the stages as functions, and how to treat each is in the stage list.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.credentials import masked
from pipeline.config.tasks import task_json
from pipeline.errors import Refused, RegistryUnavailable, UnderstudyError, UsageError, labelled
from pipeline.escaping.secrets import without_secrets
from pipeline.progress import Progress
from pipeline.registry.tracking import PAGE, Tracker
from pipeline.running.after_stage import after_stage
from pipeline.running.certain_refusals import stop_or_warn
from pipeline.running.context import Outcome, StageContext, StageRun
from pipeline.running.environment import environment, environment_of, highest_peak, require_device
from pipeline.running.job_inputs import JobInputs
from pipeline.running.jobs import Job
from pipeline.running.parts import drop_parts, kept_parts
from pipeline.running.peak_memory import peak_memory
from pipeline.running.plan import Step, plan_of
from pipeline.running.stage_list import STAGE_NAMES, STAGES, Stage, stage_named
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.atomic import replacing
from pipeline.store.locks import UNLIMITED
from pipeline.store.presence import Presence
from pipeline.store.processes import signs_of_life
from pipeline.store.runs import JobEntry, RunRecord, run_directory, run_lock, shared_jobs
from pipeline.store.times import utc_now

Review = Callable[[RunRecord, Path], str]  # the page of the decision in an artifact, with the run's own config


class Runner:
    """Executes the jobs of one run record, with the `stages` by name."""

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        progress: Progress,
        stages: Mapping[str, StageRun],
        review: Review,
        verify: bool = False,
        force_promote: bool = False,
        even_if_refused: bool = False,
    ) -> None:
        self.store, self.record, self.progress = store, record, progress
        self.stages, self.review = stages, review
        self.verify, self.force_promote, self.even_if_refused = verify, force_promote, even_if_refused
        self.plan = plan_of(record, store)
        self._inputs = JobInputs(self.plan, record.id, progress)
        self.tracker = Tracker(self.plan.config, store, progress)
        self._presence = Presence(store)
        self._decided: Path | None = None  # the artifact with the decision
        self._asked: Sequence[Stage] = ()
        self._ended: set[str] = set()  # jobs of this call that are reported as done

    def run(self, first: str = STAGE_NAMES[0], last: str = STAGE_NAMES[-1]) -> None:
        """Run the stages `first` to `last`; the artifacts of earlier stages must be in the store.

        Raises Refused when a stage refuses the draft; the record has in any case how the run ended.
        """
        alive = signs_of_life(run_directory(self.store, self.record.id))
        with self._presence, alive, self.store.lock(run_lock(self.record.id), shared=True):
            self._run(first, last)

    def _run(self, first: str, last: str) -> None:
        try:
            self.tracker.sync(self.record)  # people see the run from its start
            self._run_steps(STAGE_NAMES.index(first), STAGE_NAMES.index(last))
            self._close("finished" if last == STAGE_NAMES[-1] else "stopped")
        except Refused:
            self._close("refused")
            raise
        except KeyboardInterrupt:
            self._close("interrupted")
            raise
        except BaseException:
            self._close("failed")
            raise

    def _run_steps(self, first: int, last: int) -> None:
        self._asked = STAGES[first : last + 1]
        for step in self.plan.steps(STAGE_NAMES[last]):
            try:
                self._run_step(step, build=STAGE_NAMES.index(step.job.stage) >= first)
            except (KeyboardInterrupt, Refused):
                raise
            except BaseException as error:
                if step.job.id not in self._ended:  # else the config cannot work with what the job found
                    self.progress.line(f"{step.job.id}: failed")
                self.record.failure = labelled(step.job.id, _one_line(error))
                raise

    def _run_step(self, step: Step, build: bool) -> None:
        self._presence.require()
        stage, began = stage_named(step.job.stage), time.monotonic()
        if stage.needs_registry:
            self._require_registry()
        if not stage.cached:
            if build:
                self._run_uncached(step, began)
            return
        artifact, state = self._artifact(step, build)
        drop_parts(self.store, step.name)
        if artifact.decision is not None:
            self.record.decision, self._decided = artifact.decision, artifact.path
        if build:
            self._record_job(step, state, time.monotonic() - began)
        if artifact.refused:
            self.record.save(self.store)
            raise Refused(artifact.refused)
        self._check_after(step.job, artifact, build)
        self.plan.take(step, artifact)
        if stage.completes_config:
            self._check_champion(artifact)
            self.record.resolved = self.plan.config.model_dump(mode="json")
            self.record.save(self.store)

    def _artifact(self, step: Step, build: bool) -> tuple[Artifact, str]:
        """Found or built, and which of the two."""
        artifact = step.find()
        if artifact is None:
            if not build:
                raise step.missing()
            return self._build_locked(step)
        if self.verify:
            artifact.check_hashes()
        return artifact, "skipped"

    def _check_after(self, job: Job, artifact: Artifact, build: bool) -> None:
        """What the artifact decides of the config. Where the stage was asked for and the gate must refuse, the run stops here."""
        after = after_stage(job.stage, self.plan.config, artifact.path)
        for note in after.notes:
            self.progress.line(note)
        if build:
            stop_or_warn(after.refusals, self.progress, self.even_if_refused)

    def _check_champion(self, pair: Artifact) -> None:
        """UsageError where the pair is not one that the champion can be examined with."""
        if "champion" in self.plan.outside:
            try:
                self._inputs.check_champion(pair.path)
            except RegistryUnavailable as error:  # as at the beginning of a run; the gate asks again
                self.progress.warn(f"{error}; the champion's tokenizer is not compared")
            except UsageError as error:
                stop_or_warn([str(error)], self.progress, self.even_if_refused)

    def _build_locked(self, step: Step) -> tuple[Artifact, str]:
        def waiting(by: str) -> None:
            self.progress.line(f"{step.job.id}: another run is building it ({by}); waiting")

        with self.store.lock(step.name, waiting, wait_seconds=UNLIMITED):
            artifact = step.find()
            return (self._build(step), "done") if artifact is None else (artifact, "skipped")

    def _build(self, step: Step) -> Artifact:
        job, stage = step.job, stage_named(step.job.stage)
        require_device(self.plan.config.device, self._asked)
        self.progress.line(f"{job.id}: {job.summary}")
        work = self.store.open_work(job.stage, step.key, resumable=stage.resumable)
        # Written only where it is true: older versions read the other manifests.
        resumed = {"resumed": True} if any(work.iterdir()) or kept_parts(self.store, work.name).is_dir() else {}
        began = time.monotonic()
        with self._inputs.unchanged(job, work):
            context = self._inputs.context(step, work)
            with peak_memory() as peak:
                outcome = self._call(job.stage, context)
        manifest = {
            "stage": job.stage,
            "part": job.part,
            "task": task_json(job.task),
            "key": step.key,
            "version": stage.version,
            "settings": job.key_settings,
            "inputs": dict(step.digests),
            "created": utc_now(),
            "seed": self.plan.config.seed,
            "seconds": time.monotonic() - began,
            **resumed,
            "peak_memory": highest_peak(peak, context.workers),
            "environment": environment(self.plan.config.device) | environment_of(context.workers),
            "figures": dict(outcome.figures),
            "provides": dict(outcome.provides),
            "notes": dict(outcome.notes),
            "refused": outcome.refused,
            "decision": outcome.decision,
        }
        return self.store.commit(work, manifest)

    def _run_uncached(self, step: Step, began: float) -> None:
        """Run a stage that acts on the outside world; its files are part of the run, not of the cache."""
        job = step.job
        self.progress.line(f"{job.id}: {job.summary}")
        out = run_directory(self.store, self.record.id) / job.stage
        out.mkdir(parents=True, exist_ok=True)

        # One at a time on one store, so that two runs with one draft do not both register it; among machines the
        # registry's own claim decides which run promotes.
        def waiting(by: str) -> None:
            self.progress.line(f"{job.id}: another run is doing it ({by}); waiting")

        with self.store.lock(job.stage, waiting, wait_seconds=UNLIMITED):  # a reload of another pair may take an hour
            outcome = self._call(job.stage, self._inputs.context(step, out, force_promote=self.force_promote))
        self._record_job(step, "done", time.monotonic() - began, outcome)
        if outcome.refused:
            raise Refused(outcome.refused)

    def _call(self, stage: str, context: StageContext[Any]) -> Outcome:
        outcome = self.stages[stage](context)
        self._presence.require()
        return outcome

    def _require_registry(self) -> None:
        """A stage that compares with the champion stops without the registry."""
        if "registry_down" in self.plan.outside:
            raise RegistryUnavailable(
                f"{self.plan.outside['registry_down'].facts['reason']}: the champion is not known, so the gate cannot decide; "
                "all artifacts up to evaluate are kept; run again when the registry answers"
            )

    def _record_job(self, step: Step, state: str, seconds: float, outcome: Outcome | None = None) -> None:
        job = step.job
        self.record.jobs[job.id] = JobEntry(
            stage=job.stage,
            part=job.part,
            task=task_json(job.task),
            key=step.key,
            state=state,
            seconds=seconds,
            figures=None if outcome is None else dict(outcome.figures),
            notes=None if outcome is None else dict(outcome.notes),
        )
        self.record.save(self.store)
        self._write_page()
        shared = shared_jobs(self.record).get(job.id)
        how = (
            f"in {seconds:.1f} s"
            if state == "done"
            else f"({f'that of {shared}' if shared else 'already in the store'})"
        )
        self.progress.line(f"{job.id}: {state} {how}")
        self._ended.add(job.id)
        if state == "done":
            self.tracker.sync(self.record)

    def _write_page(self) -> None:
        """The review page belongs to the run: its artifact may be another run's, and the page shows this run's config."""
        if self._decided is not None:
            page = self.review(self.record, self._decided)
            with replacing(run_directory(self.store, self.record.id) / PAGE) as partial:
                partial.write_text(page, encoding="utf-8")

    def _close(self, state: str) -> None:
        if self._presence.is_lost:  # the record would be in a new directory, which then looks like a store
            return
        self.record.state, self.record.ended = state, max(utc_now(), self.record.created)
        self.record.save(self.store)
        self.tracker.sync(self.record)


def _one_line(error: BaseException) -> str:
    text = without_secrets(masked(" ".join(str(error).split())))
    return text[:500] if isinstance(error, UnderstudyError) and text else f"{type(error).__name__}: {text[:300]}"
