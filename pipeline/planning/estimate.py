"""What a run costs, job by job: tokens, bytes, hours, the critical job, and what more machines save."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.models.memory import training_bytes
from pipeline.planning.assumptions import Assumption, amounts_of, assumptions_of
from pipeline.planning.disk import disk_of
from pipeline.planning.earlier_runs import Measurements
from pipeline.planning.forecast import Forecast
from pipeline.planning.savings import Saving, savings_of
from pipeline.planning.throughput import Origin, sizes_of, throughput
from pipeline.planning.trial_runs import TrialCosts
from pipeline.planning.work import Amounts, Work, generated_by_split, work_of
from pipeline.running.jobs import PROMPTS_JOB, Job, jobs_of


@dataclass(frozen=True, kw_only=True)
class JobEstimate:
    """One job. None: not known."""

    job: str
    summary: str
    tokens_in: float
    tokens_out: float
    stored_bytes: float | None
    scratch_bytes: float  # beside them, while it runs
    seconds: float | None
    per_second: float | None  # of all workers
    unit: str
    workers: float  # endpoints of weight 1, or processes, that share the work
    least_seconds: float  # that more workers do not shorten: generate.server.tokens_per_second
    origin: Origin
    why: str


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of a whole run from an empty store. The jobs run one after another, so their times add up."""

    jobs: list[JobEstimate]
    assumptions: list[Assumption]
    differences: dict[str, list[str]]  # by run whose throughputs are used: settings that change them
    savings: list[Saving]
    seconds: float  # of the jobs whose time is known
    unknown: list[str]  # the other jobs
    critical: str | None  # the job with the most time; None while a generation, training or examination has none
    stored_bytes: float
    peak_bytes: float
    unknown_bytes: list[str]
    generated_by_split: dict[str, float]  # tokens of `generate`
    endpoints: int  # servers that generate
    endpoint_seconds: float | None  # of all of them together
    endpoint_gpu_seconds: float | None
    budget_share: float | None  # of generate.server.token_budget that the requests need
    training_bytes: float | None  # of memory, in each process that trains all weights of the draft
    sharded_bytes: float | None  # the same with distill.shard, where that is off and there are several processes


def estimate(config: Config, counted: Forecast, known: Measurements, measured: TrialCosts | None) -> Estimate:
    """`known`: of earlier runs; `measured`: of small runs of this config, if they were made."""
    amounts, sizes = amounts_of(config, counted, known), sizes_of(config, known)
    works, jobs = work_of(config, amounts), list[JobEstimate]()
    for job in jobs_of(config):
        work, earlier = works[job.id], known.jobs.get(job.id)
        if job.shares and earlier is None and (measured is None or job.id not in measured.jobs):
            jobs.append(_shared(job))
            continue
        measured_rate = throughput(job.id, work, config, known, measured, sizes)
        seconds, why, origin, least = None, measured_rate.why, measured_rate.origin, _least_seconds(config, work)
        if measured_rate.per_second is not None:
            seconds = work.of_one(work.workers) / measured_rate.per_second
            if least > seconds:
                seconds, why, origin = least, "generate.server.tokens_per_second", "stated"
        elif work.rate == "speed":
            seconds, why, origin = config.evaluate.speed.seconds, "at most evaluate.speed.seconds", "stated"
        disk = disk_of(job.id, work, config, amounts, earlier, sizes.draft)
        jobs.append(
            JobEstimate(
                job=job.id,
                summary=job.summary,
                tokens_in=work.tokens_in,
                tokens_out=work.tokens_out,
                stored_bytes=disk.stored,
                scratch_bytes=disk.scratch,
                seconds=seconds,
                per_second=work.amount / seconds if seconds and work.unit else None,
                unit=work.unit,
                workers=work.workers,
                least_seconds=least,
                origin=origin,
                why=why,
            )
        )
    assumed = assumptions_of(config, counted, known, amounts, sizes)
    used = {known.jobs[job.job].run for job in jobs if job.origin == "earlier"}
    differences = {run: list(known.differences[run]) for run in sorted(used) if known.differences[run]}
    return _whole(config, jobs, works, amounts, assumed, differences, measured, sizes.draft)


def _shared(job: Job) -> JobEstimate:
    """What another job builds is counted once."""
    return JobEstimate(
        job=job.id,
        summary=job.summary,
        tokens_in=0.0,
        tokens_out=0.0,
        stored_bytes=0.0,
        scratch_bytes=0.0,
        seconds=0.0,
        per_second=None,
        unit="",
        workers=1.0,
        least_seconds=0.0,
        origin="shared",
        why=job.shares,
    )


def _least_seconds(config: Config, work: Work) -> float:
    """The least seconds of what servers are asked for; 0 without a limit."""
    cap = config.generate.server.tokens_per_second
    return work.asked / cap if cap is not None else 0.0


def _whole(
    config: Config,
    jobs: list[JobEstimate],
    works: Mapping[str, Work],
    amounts: Amounts,
    assumptions: list[Assumption],
    differences: dict[str, list[str]],
    measured: TrialCosts | None,
    parameters: float | None,
) -> Estimate:
    timed = [job for job in jobs if job.seconds is not None]
    large = {job.job for job in jobs if works[job.job].rate in ("generate", "train", "examine")}
    all_large = large <= {job.job for job in timed}
    critical = max(timed, key=lambda job: job.seconds or 0.0, default=None) if all_large else None
    endpoints, budget = len(config.generate.server.endpoints), config.generate.server.token_budget
    of_endpoints = endpoints * served if endpoints and (served := _seconds_of(jobs, "generate")) is not None else None
    asking = [works[job] for job in ("generate", PROMPTS_JOB) if job in works]  # each may spend the budget
    gpus = config.plan.gpus_per_endpoint
    training, sharded = _training_memory(config, parameters, round(amounts.processes))
    return Estimate(
        jobs=jobs,
        assumptions=assumptions,
        differences=differences,
        savings=savings_of(
            config,
            works,
            {job.job: job.seconds for job in timed if job.seconds is not None},
            {job.job: job.least_seconds for job in timed},
            _is_on_cpu(config, jobs, measured),
        ),
        seconds=sum(job.seconds or 0.0 for job in timed),
        unknown=[job.job for job in jobs if job.seconds is None],
        critical=critical.job if critical else None,
        stored_bytes=sum(job.stored_bytes or 0.0 for job in jobs),
        peak_bytes=_peak(jobs),
        unknown_bytes=[job.job for job in jobs if job.stored_bytes is None],
        generated_by_split=generated_by_split(config, amounts),
        endpoints=endpoints,
        endpoint_seconds=of_endpoints,
        endpoint_gpu_seconds=None if of_endpoints is None or gpus is None else gpus * of_endpoints,
        budget_share=max(work.tokens_in + work.tokens_out for work in asking) / budget if budget else None,
        training_bytes=training,
        sharded_bytes=sharded,
    )


def _seconds_of(jobs: Sequence[JobEstimate], name: str) -> float | None:
    return next(job.seconds for job in jobs if job.job == name)


def _training_memory(config: Config, parameters: float | None, processes: int) -> tuple[float | None, float | None]:
    """Bytes by the config, and with distill.shard where that changes them."""
    if parameters is None or config.distill.lora is not None:
        return None, None
    whole, part = (training_bytes(parameters, config.distill.optimizer, parts) for parts in (1, processes))
    return (part, None) if config.distill.shard or processes == 1 else (whole, part)


def _peak(jobs: Sequence[JobEstimate]) -> float:
    """The most that lies in the store at one time: the artifacts so far, and what the job at hand needs beside its own."""
    stored = peak = 0.0
    for job in jobs:
        stored += job.stored_bytes or 0.0
        peak = max(peak, stored + job.scratch_bytes)
    return peak


def _is_on_cpu(config: Config, jobs: Sequence[JobEstimate], measured: TrialCosts | None) -> bool:
    """Whether processes of this machine share its cores, as far as is known."""
    on_cpu = config.device == "cpu" or any(" on cpu" in job.why for job in jobs)
    return on_cpu or (measured is not None and not measured.total.gpu_bytes)
