"""Estimates time, storage and memory of a run from two small runs: same models, stages and batches, fewer prompts and steps.

Seconds and bytes of a job are extrapolated linearly in its share of the work; its memory does not depend on the share.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.root import Config
from pipeline.config.tasks import EvaluateTask
from pipeline.errors import EXIT_REFUSED, UnderstudyError, UsageError
from pipeline.models.places import model_places
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.planning.earlier_runs import Lengths, measurements
from pipeline.planning.forecast import Forecast, source_rows
from pipeline.progress import Progress
from pipeline.running.certain_refusals import EVEN_IF_REFUSED
from pipeline.running.jobs import PROMPTS_JOB, jobs_of
from pipeline.running.stage_list import stage_named
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import write_json
from pipeline.store.programs import call
from pipeline.store.runs import find_built, require_run, shared_jobs

PAIR = "pair"
_STEPS, _PROMPTS = 10, 8  # least steps of a training, least prompts of a split: with fewer a split may be empty
_TWICE, _MOST = 2.0, 1.0
_PAIR_SHARES = (0.04, 0.16)  # the reference pair's steps all take the same time, after a start of some seconds
_UNDERSTUDY = Path(__file__).parents[2] / "understudy_cli.py"
_CONFIG, _STORE = "config.yaml", "store"
_DONE = ": done in "  # of a line of a run


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one job, or of the whole run including the time between its jobs."""

    seconds: float
    stored_bytes: int
    memory_bytes: int  # peak of the process
    gpu_bytes: int  # peak on the GPU; 0 without one


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A small run that was measured."""

    seconds: float
    shares: dict[str, float]  # by job: its share of the work of the whole run
    counts: dict[str, float]  # by job: completions or prompts, where their number is random; else 0
    jobs: dict[str, Cost]


@dataclass(frozen=True, kw_only=True)
class TrialCosts:
    """Estimated cost of the whole run, and the memory for serving its drafts."""

    jobs: dict[str, Cost]
    total: Cost
    serving_bytes: dict[str, float]  # weights and KV cache, by variant of the draft
    batch: int
    context: int
    lengths: Lengths | None = None  # of the larger run
    draft_parameters: float | None = None
    target_parameters: float | None = None


def measure(config: Config, counted: Forecast, store: Store, progress: Progress) -> TrialCosts:
    """The small runs have a temporary store inside `store`. They log nowhere else, register nothing and have no champion.
    UnderstudyError where one fails, UsageError where there are too few rows, or none that can be read."""
    if config.plan.rows is not None:
        raise UsageError("plan --measure runs on the rows of corpus.sources: leave out plan.rows")
    trials = list[Trial]()
    with _place(store, progress) as place:
        for number, (share, pair_share) in enumerate(zip(_shares(config, counted), _PAIR_SHARES, strict=True), 1):
            progress.line(f"small run {number} of 2: {share:.1%} of prompts and steps")
            trials.append(_run(config, share, pair_share, last := place / str(number), progress))
        measured = measurements(Store(last / _STORE), config)
        served = _served(config, Store(last / _STORE))
        serving = _serving(config, Store(last / _STORE), served)
    jobs, total = extrapolate(trials[0], trials[1])
    return TrialCosts(
        jobs=jobs,
        total=total,
        serving_bytes=serving,
        batch=served[0],
        context=served[1],
        lengths=replace(measured.lengths, source="two small runs") if measured.lengths else None,
        draft_parameters=measured.draft_parameters,
        target_parameters=measured.target_parameters,
    )


@contextmanager
def _place(store: Store, progress: Progress) -> Iterator[Path]:
    """One plan at a time per store, so that the files of a killed plan are not confused with those of another process."""
    with store.lock("plan", lambda by: progress.line(f"another plan is being measured ({by}); waiting")):
        place = store.work / "plan"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _shares(config: Config, counted: Forecast) -> tuple[float, float]:
    """Shares of prompts and steps: enough for a full batch of completions, prompts in each split and some training steps."""
    fewest, examined_every = min(counted.prompts.values()), config.distill.evaluate_every
    if fewest < 2:
        raise UsageError(f"plan --measure: {counted.rows} rows are too few for two smaller runs; start the run itself")
    completions = counted.generate[0].completions  # the target's job comes first
    steps = [
        config.distill.max_steps,
        *([config.distill.on_policy.max_steps] if config.distill.on_policy.rounds else []),
    ]
    least = max(config.generate.batch / completions, _STEPS / min(steps), _PROMPTS / fewest)
    # The steps between two examinations must be a whole number, so that a small training has as many of them as the whole.
    small = min(math.ceil(least * examined_every) / examined_every, _MOST / _TWICE)
    return small, _TWICE * small


def scaled(config: Config, share: float, pair_share: float) -> Config:
    """The same config with a share of prompts and steps, and a share of the reference pair's training."""
    raw = config.model_dump()
    for source, rows, given in zip(raw["corpus"]["sources"], source_rows(config), config.corpus.sources, strict=True):
        if not given.is_reference:
            source["sample" if given.sample else "limit"] = _part(rows, share)
    raw["corpus"]["max_rejected_share"] = 1.0  # the first rows may have more bad ones
    reference = raw["pair"]["reference"]
    reference["prompts"] = max(8, _part(reference["prompts"], share))
    reference["fine_tune_steps"] = _part(reference["fine_tune_steps"], pair_share)
    for role in ("target", "draft"):
        reference[role]["steps"] = _part(reference[role]["steps"], pair_share)
    distill = raw["distill"]
    for section, name in (
        (distill, "max_steps"),
        (distill, "evaluate_every"),
        (distill, "save_every"),
        (distill["on_policy"], "prompts"),
        (distill["on_policy"], "max_steps"),
        (raw["quantize"]["recovery"], "max_steps"),
    ):
        section[name] = _part(section[name], share)
    raw["tracking"]["uri"] = None
    return Config.model_validate(raw)


def _part(whole: int, share: float) -> int:
    return max(1, round(whole * share))


def _run(config: Config, share: float, pair_share: float, place: Path, progress: Progress) -> Trial:
    """Its jobs are shown as they end, and how far a long one is. A refusal by the gate is no failure: there are mostly too
    few prompts for its rules."""
    place.mkdir()
    write_json(place / _CONFIG, scaled(config, share, pair_share).model_dump(mode="json"))
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    # By path and with -P: neither the directory nor PYTHONPATH decides which `understudy_cli` is run.
    command = [sys.executable, "-P", str(_UNDERSTUDY), "run", str(place / _CONFIG), "--store", str(place / _STORE)]
    command.append(EVEN_IF_REFUSED)  # there are mostly too few prompts for the gate's rules
    began = time.monotonic()

    def hear(line: str) -> None:
        if line.startswith("  ") or _DONE in line:
            progress.line(f"  {line.strip()}")

    ended = call(command, environment=environment, hear=hear)
    seconds = time.monotonic() - began
    if ended.returncode not in (0, EXIT_REFUSED):
        lines = ended.stderr.strip().splitlines() or ["no error message"]
        why = lines[-1].removeprefix("understudy: ")
        raise UnderstudyError(f"plan: a run of this config with {share:.1%} of its prompts and steps failed: {why}")
    store = Store(place / _STORE)
    record = require_run(store, None)
    own = record.jobs.keys() - shared_jobs(record)
    cached = [job.id for job in jobs_of(config) if stage_named(job.stage).cached and job.id in own]
    built = {job: find_built(store, record, job) for job in cached}
    return Trial(
        seconds=seconds,
        shares={job: _share(job, config, share, pair_share) for job in built},
        counts={job: _count(job, built) for job in built},
        jobs={job: cost_of(artifact) for job, artifact in built.items()},
    )


def _share(job: str, config: Config, share: float, pair_share: float) -> float:
    if job == PAIR:
        return pair_share if config.pair.is_reference else 1.0
    return share


def _count(job: str, built: Mapping[str, Artifact]) -> float:
    """Completions of a generation, with all turns of a chat; examined prompts. 0 for a job whose share is exact."""
    stage = built[job].manifest.stage
    if stage == "generate" and job != PROMPTS_JOB:
        return float(built[job].figures["completions"])
    return float(built["corpus"].figures["examination"]) if stage in ("evaluate", "gate") else 0.0


def cost_of(artifact: Artifact) -> Cost:
    """The measured cost of building an artifact."""
    manifest = artifact.manifest
    peak, stored = manifest.peak_memory, sum(file.size for file in manifest.files.values())
    return Cost(
        seconds=manifest.seconds,
        stored_bytes=stored,
        memory_bytes=round(peak["process"]),
        gpu_bytes=round(peak.get("gpu", 0)),
    )


def _pair(config: Config, store: Store) -> Pair:
    return read_pair(find_built(store, require_run(store, None), PAIR).path, model_places(config.pair))


def _served(config: Config, store: Store) -> tuple[int, int]:
    """Batch and context for the memory. What nobody stated is no longer than the pair's context."""
    batch, context = config.gate.served
    return (batch, context) if config.gate.load else (batch, min(context, _pair(config, store).context))


def _serving(config: Config, store: Store, served: tuple[int, int]) -> dict[str, float]:
    record, pair = require_run(store, None), _pair(config, store)
    examined = {
        job.task.variant: find_built(store, record, job.id)
        for job in jobs_of(config)
        if isinstance(job.task, EvaluateTask)
        and job.task.variant
        and job.task.split == "examination"
        and job.id in record.jobs  # a variant may be left out
    }
    return {
        variant: size
        for variant, artifact in examined.items()
        if artifact.figures
        if (size := pair.serving_bytes(artifact.figures["draft_bytes"], *served)) is not None
    }


def extrapolate(small: Trial, large: Trial) -> tuple[dict[str, Cost], Cost]:
    """Cost of each job and of the run. The seconds between jobs (start, imports, tracking) do not depend on the share."""

    def whole(name: str) -> Cost:
        first, second, shares = small.jobs[name], large.jobs[name], [small.shares[name], large.shares[name]]
        if large.counts[name]:  # the larger run gives the better estimate of the whole run's count
            shares[0] = shares[1] * small.counts[name] / large.counts[name]
        return Cost(
            seconds=_at_one(first.seconds, second.seconds, *shares),
            stored_bytes=round(_at_one(first.stored_bytes, second.stored_bytes, *shares)),
            memory_bytes=max(first.memory_bytes, second.memory_bytes),
            gpu_bytes=max(first.gpu_bytes, second.gpu_bytes),
        )

    jobs = {name: whole(name) for name in large.jobs}
    between = large.seconds - sum(job.seconds for job in large.jobs.values())
    total = Cost(
        seconds=between + sum(cost.seconds for cost in jobs.values()),
        stored_bytes=sum(cost.stored_bytes for cost in jobs.values()),
        memory_bytes=max(cost.memory_bytes for cost in jobs.values()),
        gpu_bytes=max(cost.gpu_bytes for cost in jobs.values()),
    )
    return jobs, total


def _at_one(small: float, large: float, small_share: float, large_share: float) -> float:
    """The value at share 1. It never falls with the share, whatever the noise; two equal shares are scaled proportionally."""
    if large_share <= small_share:
        return max(small / small_share, large / large_share)
    return large + max(0.0, large - small) * (1 - large_share) / (large_share - small_share)
