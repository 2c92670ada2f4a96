"""What a run would do with the store and on the machine as they are: the jobs of `understudy run --dry-run`, with --verbose the
resolved config and what each job reads; what `understudy plan` prints of it; and for both what the stages hold in memory."""

from collections import Counter
from collections.abc import Sequence

from pipeline.commands.tables.console import Report
from pipeline.commands.tables.plan import duration
from pipeline.config.root import Config
from pipeline.models.memory import gib
from pipeline.planning.estimate import Estimate
from pipeline.planning.memory import MemoryForecast
from pipeline.progress import say, say_block
from pipeline.running.jobs import Job
from pipeline.running.preview import BUILD, REFUSED, REUSE, PlannedJob

COLUMNS = ("job", "a run would", "what it does")


def print_jobs(planned: Sequence[PlannedJob], notes: Sequence[str], store: object) -> None:
    """Print the jobs to stdout, with `notes` on what the pair leaves out."""
    out = Report()
    out.table(COLUMNS, [[job.job.id, job.action, job.job.summary] for job in planned], left=COLUMNS)
    count = Counter(job.action == BUILD for job in planned)
    out.text(
        f"{count[True]} of {len(planned)} jobs are to be built; the others are in {store} already, or have no artifact (promote)"
    )
    for note in notes:
        out.text(note)


def print_stored(estimate: Estimate, planned: Sequence[PlannedJob]) -> None:
    """Print to stdout in what a run differs from one with an empty store and no champion, which `estimate` is of."""
    out, counted = Report(), {job.job: job for job in estimate.jobs}
    reused = [job.job.id for job in planned if job.action in (REUSE, REFUSED)]
    if reused:
        left = [counted[job.job.id] for job in planned if job.job.id in counted and job.job.id not in reused]
        known = [job.seconds for job in left if job.seconds is not None]
        least = "at least " if len(known) < len(left) else ""
        takes = f"; the others in the table take {least}{duration(sum(known))}" if known else ""
        out.text(f"in the store already, and not made again: {', '.join(reused)}{takes}")
    if further := [job.job.id for job in planned if job.job.id not in counted and job.action == BUILD]:
        left_out = [name for name in counted if name not in {job.job.id for job in planned}]
        instead = f", in place of {', '.join(left_out)}" if left_out else ""
        out.text(
            f"of the champion, and not in the table: {', '.join(further)}, as long as those of the base draft{instead}"
        )


def print_memory(forecast: MemoryForecast) -> None:
    """Print a line for what each stage holds, one for what is free, and one for each stage that a run here is refused at."""
    if not forecast.stages:
        return
    out, prompt = Report(), f"{forecast.prompt.value:,.0f} tokens"
    out.text("memory of each process, at least (activations come on top):")
    unknown = dict[str, list[str]]()
    for stage in forecast.stages:
        if stage.bytes is None:
            unknown.setdefault(stage.what, []).append(stage.stage)
        else:
            out.text(f"  {stage.stage}: {gib(stage.bytes)}: {stage.what}", indent=4)
    for why, stages in unknown.items():
        out.text(f"  {', '.join(stages)}: {why}", indent=4)
    if any(row.stage.startswith("generate") and row.bytes is not None for row in forecast.stages):
        out.text(f"  caches: of prompts of {prompt} ({forecast.prompt.source}; {forecast.prompt.key})", indent=4)
    if forecast.free:
        free = [
            f"{'an unknown size' if size is None else gib(size)} on {place}" for place, size in forecast.free.items()
        ]
        out.text(f"memory that is free here: {'; '.join(free)}")
    if forecast.note:
        out.text(forecast.note)
    for stage in forecast.stages:
        if stage.refused:
            condition = f" if the longest prompt has {prompt}" if stage.by_prompt else ""
            out.text(f"a run here is refused at {stage.stage}{condition}: {stage.refused}")


def print_config(config: Config, jobs: Sequence[Job]) -> None:
    """Print the config to stdout: YAML, and comments."""
    from pipeline.escaping.markup import yaml_text

    say_block(yaml_text(config.model_dump(mode="json")))
    say("---", "# jobs in execution order, and what each reads")
    say(
        "# JOB#PART is a part of a job's output; pair#shared: vocabulary, stop tokens and context that both models have"
    )
    say("# outside#NAME is an input that no job makes")
    for job in jobs:
        inputs = dict.fromkeys(job.reads.values())  # promote may read one draft under two names
        say(f"# {job.id}: reads {', '.join(inputs) or 'nothing'}")
