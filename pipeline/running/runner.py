"""Runs the jobs of a plan: find or build each artifact, keep the record, never build one artifact twice at the same time.

Does not depend on what a stage does: it imports `stages.<name>` by name and calls its `run` with a context.
"""

import functools
import importlib
import importlib.metadata
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.config.loading import parse_stored_config
from pipeline.config.root import Config
from pipeline.errors import Refused, RegistryUnavailable, UnderstudyError, UsageError
from pipeline.judgement.decision_file import read_decision
from pipeline.judgement.schema import REFUSE, brief
from pipeline.models.stored_pair import PAIR_FILE
from pipeline.progress import Progress
from pipeline.registry.registry import Registry, registry_for
from pipeline.registry.tracking import Tracker
from pipeline.running.context import Outcome, StageContext
from pipeline.running.inputs import OutsideInput, PinnedInputs, resolve_inputs
from pipeline.running.jobs import Job, expand
from pipeline.running.pair_checks import apply_pair
from pipeline.running.peak_memory import peak_memory
from pipeline.running.stage_list import STAGE_NAMES, stage_named
from pipeline.running.tasks import task_json
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import read_json
from pipeline.store.runs import GC_LOCK, RunRecord, load_run, new_run_id, run_directory, run_lock
from pipeline.store.times import utc_now

_RESUMABLE = ("pair", "generate", "distill")  # these continue from the files in their work directory
_REPORTED_LIBRARIES = ("torch", "transformers", "trl", "bitsandbytes", "mlflow", "numpy")


def begin(config: Config, store: Store, run_id: str | None, progress: Progress, verify: bool = False) -> RunRecord:
    """A new record with its outside inputs pinned, or the existing one called `run_id`.

    An existing run keeps its pinned inputs. Only the champion is looked up again, because the registry may have changed.
    `verify`: hash the inputs instead of trusting remembered digests.
    Raises UsageError if `run_id` exists with another config, or if a pinned input has changed since.
    """
    store.create()
    record = load_run(store, run_id) if run_id is not None else None
    resolved = config.model_dump(mode="json")
    inputs = resolve_inputs(config, store, verify)
    if record is None:
        record = RunRecord(
            id=run_id if run_id is not None else new_run_id(config.name),
            name=config.name,
            created=utc_now(),
            config=resolved,
            outside={name: asdict(item) for name, item in inputs.items()},
        )
    elif record.config != resolved:
        raise UsageError(f"--run {run_id}: exists with another config; leave --run out or name a new one")
    else:
        _check_pinned(record, inputs)
    record.state, record.ended, record.failure = "running", "", ""
    for name in ("registry_down", "champion"):
        record.outside.pop(name, None)
    record.outside |= _champion(config, store, progress)
    # From here on `store gc` sees the run, and keeps what it needs; what it is about to delete is gone before the run looks.
    with store.lock(GC_LOCK, lambda: progress.line("`store gc` is running; waiting"), shared=True):
        record.save(store)
    return record


def _check_pinned(record: RunRecord, inputs: Mapping[str, OutsideInput]) -> None:
    """All stages of a run must read the same files."""
    for name, item in inputs.items():
        if name == "today":  # the run keeps the day on which it began
            continue
        if record.outside[name]["digest"] != item.digest:
            raise UsageError(
                f"--run {record.id}: {name} ({item.path or item.digest}) has changed since this run began; start a new run"
            )


def _champion(config: Config, store: Store, progress: Progress) -> dict[str, dict[str, Any]]:
    """The champion as an outside input, if there is one; the reason if the registry does not answer."""
    try:
        champion = registry_for(config, store).champion()
    except RegistryUnavailable as error:
        progress.warn(f"{error}; continuing without it; the gate cannot decide until it answers")
        return {"registry_down": asdict(OutsideInput("", facts={"reason": str(error)}))}
    if champion is None:
        return {}
    return {
        "champion": asdict(OutsideInput(champion.digest, facts={"name": champion.name, "version": champion.version}))
    }


class Runner:
    """Executes the jobs of one run record."""

    def __init__(
        self, store: Store, record: RunRecord, progress: Progress, verify: bool = False, force_promote: bool = False
    ) -> None:
        self.store, self.record, self.progress, self.verify = store, record, progress, verify
        self.force_promote = force_promote
        self.config = parse_stored_config(record.config, f"run {record.id}")
        self.outside = {name: OutsideInput(**item) for name, item in record.outside.items()}
        self.pinned = PinnedInputs(self.config, self.outside)
        self.jobs = expand(self.config, self.outside)
        self.tracker = Tracker(self.config, store, progress)
        self._built: dict[str, Artifact] = {}
        self._hashed: set[Path] = set()

    def run(self, first: str = STAGE_NAMES[0], last: str = STAGE_NAMES[-1]) -> None:
        """Run the stages `first` to `last`; the artifacts of earlier stages must be in the store.

        Raises Refused when gate or promote refuses; the record says in any case how the run ended.
        """
        with self.store.lock(run_lock(self.record.id), shared=True):
            self._run(first, last)

    def _run(self, first: str, last: str) -> None:
        begin_at, end_at = STAGE_NAMES.index(first), STAGE_NAMES.index(last)
        try:
            self.tracker.sync(self.record)  # people see the run from its start
            for job in self._jobs_in_order():
                position = STAGE_NAMES.index(job.stage)
                if position <= end_at:
                    try:
                        self._run_job(job, build=position >= begin_at)
                    except (KeyboardInterrupt, Refused):
                        raise
                    except BaseException as error:
                        self.progress.line(f"{job.id}: failed")
                        self.record.failure = f"{job.id}: {_one_line(error)}"
                        raise
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

    def _jobs_in_order(self) -> Iterator[Job]:
        """The jobs; what the config leaves to the pair is known once `pair` is done."""
        yield self.jobs[0]
        self.config, notes = apply_pair(self.config, read_json(self._built[self.jobs[0].id].path / PAIR_FILE))
        for note in notes:
            self.progress.line(note)
        self.jobs = expand(self.config, self.outside)
        yield from self.jobs[1:]

    def _run_job(self, job: Job, build: bool) -> None:
        if job.stage in ("gate", "promote"):
            self._require_registry()
        if job.stage == "gate":
            self._drop_overdue_challenger()
        began = time.monotonic()
        digests = {name: self._digest(reference) for name, reference in job.reads.items()}
        key = job.key(digests)
        if not stage_named(job.stage).cached:
            if build:
                self._run_uncached(job, key, digests, began)
            return
        artifact, state = self.store.find(job.stage, key), "skipped"
        if artifact is None:
            if not build:
                raise UsageError(
                    f"{job.id} is not in {self.store.root} for this config; run it first (leave --from out)"
                )
            artifact, state = self._build_locked(job, key, digests)
        elif self.verify:
            artifact.check_hashes()
        self._built[job.id] = artifact
        if build:
            self._record_job(job, key, state, time.monotonic() - began)
        if job.stage == "gate":
            self._apply_decision(artifact)

    def _build_locked(self, job: Job, key: str, digests: Mapping[str, str]) -> tuple[Artifact, str]:
        def waiting() -> None:
            self.progress.line(f"{job.id}: another run is building it; waiting")

        with self.store.lock(f"{job.stage}-{key}", waiting):
            artifact = self.store.find(job.stage, key)
            if artifact is not None:
                return artifact, "skipped"
            self.progress.line(f"{job.id}: {stage_named(job.stage).summary}")
            work = self.store.open_work(job.stage, key, resumable=job.stage in _RESUMABLE)
            began = time.monotonic()
            self._check_outside(job)
            with peak_memory() as peak:
                outcome = self._call(job, digests, work)
            try:
                self._check_outside(job)
            except UsageError as error:
                shutil.rmtree(work)  # made from other files than its key says; nothing may resume from it
                raise UsageError(f"{job.id}: while it was running, {error}") from None
            manifest = {
                "stage": job.stage,
                "part": job.part,
                "task": task_json(job.task),
                "key": key,
                "version": stage_named(job.stage).version,
                "settings": job.key_settings,
                "inputs": dict(digests),
                "created": utc_now(),
                "seed": self.config.seed,
                "seconds": time.monotonic() - began,
                "peak_memory": peak,
                "environment": _environment(),
                "figures": dict(outcome.figures),
                "provides": dict(outcome.provides),
                "notes": dict(outcome.notes),
            }
            return self.store.commit(work, manifest), "done"

    def _run_uncached(self, job: Job, key: str, digests: Mapping[str, str], began: float) -> None:
        """Run a stage that acts on the outside world; its files are part of the run, not of the cache."""
        self.progress.line(f"{job.id}: {stage_named(job.stage).summary}")
        out = run_directory(self.store, self.record.id) / job.stage
        out.mkdir(parents=True, exist_ok=True)
        # One at a time on one store, so that two runs with one draft do not both register it; among machines the
        # registry's own claim decides which run promotes.
        with self.store.lock(job.stage, lambda: self.progress.line(f"{job.id}: another run is doing it; waiting")):
            outcome = self._call(job, digests, out)
        self._record_job(job, key, "done", time.monotonic() - began, outcome)
        if outcome.refused:
            raise Refused(outcome.refused)

    def _call(self, job: Job, digests: Mapping[str, str], out: Path) -> Outcome:
        context = StageContext(
            config=self.config,
            job_id=job.id,
            task=job.task,
            inputs={name: self._path(ref) for name, ref in job.reads.items()},
            digests=digests,
            facts={name: self._facts(ref) for name, ref in job.reads.items()}
            | {"champion": self._facts("outside#champion")},
            out=out,
            store=self.store.root,
            run_id=self.record.id,
            progress=self.progress,
            force_promote=self.force_promote,
        )
        module = importlib.import_module(f"stages.{job.stage}")
        outcome = module.run(context)
        assert isinstance(outcome, Outcome), f"stages.{job.stage}.run must return an Outcome"
        return outcome

    def _check_outside(self, job: Job) -> None:
        """The outside files that a job reads. Models stay where they are: those of `pair#target` are the input `target`."""
        for reference in job.reads.values():
            source, _, name = reference.partition("#")
            if source in ("outside", "pair") and name in self.outside:
                self.pinned.check(name)

    def _digest(self, reference: str) -> str:
        source, _, name = reference.partition("#")
        if source == "outside":
            return self.outside[name].digest
        return self._built[source].provides[name] if name else self._built[source].key

    def _path(self, reference: str) -> Path:
        """The path of an input, hashed before it is first read in this process."""
        source, _, name = reference.partition("#")
        if source != "outside":
            artifact = self._built[source]
            if artifact.path not in self._hashed:
                artifact.check_hashes()
                self._hashed.add(artifact.path)
            return artifact.path
        if name == "champion":
            champion = self.registry.champion_at(self.outside[name].facts["version"])
            return self.registry.fetch(champion, self.store.root / "champions" / champion.digest)
        return Path(self.outside[name].path or ".")

    def _facts(self, reference: str) -> dict[str, Any]:
        source, _, name = reference.partition("#")
        return self.outside[name].facts if source == "outside" and name in self.outside else {}

    @property
    def registry(self) -> Registry:
        return registry_for(self.config, self.store)

    def _require_registry(self) -> None:
        """Gate and promote compare with the champion: without the registry they stop."""
        if "registry_down" in self.outside:
            raise RegistryUnavailable(
                f"{self.outside['registry_down'].facts['reason']}: the champion is not known, so the gate cannot decide; "
                "all artifacts up to evaluate are kept; run again when the registry answers"
            )

    def _drop_overdue_challenger(self) -> None:
        """Nothing runs between two runs, so the next one says that nobody approved the last one's draft."""
        found = self.registry.drop_overdue()
        if found is not None:
            self.progress.line(
                f"{self.registry.name} version {found.version}: nobody approved it before {found.approve_before}; "
                "it is refused and no longer challenger"
            )

    def _apply_decision(self, artifact: Artifact) -> None:
        decision = read_decision(artifact.path)
        self.record.decision = brief(decision)
        self.record.save(self.store)
        if decision.verdict == REFUSE:
            self.tracker.sync(self.record)
            raise Refused("refused: " + "; ".join(decision.reasons))

    def _record_job(self, job: Job, key: str, state: str, seconds: float, outcome: Outcome | None = None) -> None:
        entry: dict[str, Any] = {
            "stage": job.stage,
            "part": job.part,
            "task": task_json(job.task),
            "key": key,
            "state": state,
            "seconds": seconds,
        }
        if outcome is not None:
            entry |= {"figures": dict(outcome.figures), "notes": dict(outcome.notes)}
        self.record.jobs[job.id] = entry
        self.record.save(self.store)
        how = f"in {seconds:.1f} s" if state == "done" else "(already in the store)"
        self.progress.line(f"{job.id}: {state} {how}")
        if state == "done":
            self.tracker.sync(self.record)

    def _close(self, state: str) -> None:
        self.record.state, self.record.ended = state, utc_now()
        self.record.save(self.store)
        self.tracker.sync(self.record)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:500] if isinstance(error, UnderstudyError) and text else f"{type(error).__name__}: {text[:300]}"


@functools.cache
def _environment() -> dict[str, str]:
    """Versions, machine and git revision, without importing any of the libraries."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "git": _git_revision()}
    for name in ("understudy", *_REPORTED_LIBRARIES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _git_revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"
