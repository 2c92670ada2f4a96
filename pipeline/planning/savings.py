"""What more machines save of a run, if they are as fast as those that it has and share its work evenly. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.config.distill import divisors
from pipeline.config.root import Config
from pipeline.planning.work import Work, processes_of
from pipeline.running.jobs import Job, jobs_of
from pipeline.running.settings import GenerateSettings

ALL = "all jobs"


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What a change of the machines makes of the time of some jobs."""

    job: str  # or a stage, for all its jobs; or ALL, for the whole run
    change: str
    seconds_before: float
    seconds_after: float


@dataclass(frozen=True)
class _Change:
    what: str
    of: str
    workers: Mapping[str, float]  # by job that it shortens: how many share the job then


def savings_of(
    config: Config,
    works: Mapping[str, Work],
    seconds: Mapping[str, float],
    least_seconds: Mapping[str, float],
    on_cpu: bool,
) -> list[Saving]:
    """`seconds`: of the jobs whose time is known. `least_seconds`: what more workers do not shorten. On a CPU one more process
    has no cores of its own."""
    savings = []
    for change in _changes(config, works, on_cpu):
        shared = [job for job in change.workers if job in seconds]
        after = sum(
            max(
                seconds[job] * works[job].of_one(change.workers[job]) / works[job].of_one(works[job].workers),
                least_seconds[job],
            )
            for job in shared
        )
        before = sum(seconds[job] for job in shared)
        others = sum(seconds.values()) - before if change.of == ALL else 0.0
        if shared:
            savings.append(
                Saving(
                    job=change.of,
                    change=change.what,
                    seconds_before=others + before,
                    seconds_after=others + after,
                )
            )
    return savings


def _changes(config: Config, works: Mapping[str, Work], on_cpu: bool) -> Iterator[_Change]:
    """An endpoint, a Ray worker or a GPU more; GPUs for the training, and a node that shares all that can be shared."""
    spread, processes = [job for job in jobs_of(config) if _is_spread_here(job)], works["distill"].workers
    if config.generate.is_served:
        yield _Change("one more endpoint", "generate", {"generate": works["generate"].workers + 1})
    on_ray = config.execution.ray is not None
    if on_ray or not on_cpu:
        place = "Ray worker (execution.ray.workers" if on_ray else "GPU (execution.local"
        for stage in dict.fromkeys(job.stage for job in spread):
            more = {job.id: works[job.id].workers + 1 for job in spread if job.stage == stage}
            yield _Change(f"one more {place}: {processes_of(config) + 1})", stage, more)
    sharing = [number for number in divisors(config.distill.batch) if number > processes]
    if sharing and not on_cpu:
        yield _Change(_gpus(sharing[0], sharing[0] - processes), "distill", {"distill": sharing[0]})
    if not on_ray:
        twice = {job.id: 2 * works[job.id].workers for job in spread}
        twice |= {"distill": 2 * processes} if 2 * processes in sharing else {}
        yield _Change("one more node like this one (docs/scale.md)", ALL, twice)


def _is_spread_here(job: Job) -> bool:
    """Whether processes of this machine, Ray workers and tasks of a scheduler share it: not where servers do."""
    return job.in_parts and not (isinstance(job.settings, GenerateSettings) and job.settings.api is not None)


def _gpus(processes: int, added: float) -> str:
    """A micro-batch is divided among the processes, so not every number of them will do."""
    count = "one more GPU" if added == 1 else f"{added:.0f} more GPUs"
    return f"{count} (distill.processes: {processes})"
