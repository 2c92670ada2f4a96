"""What `understudy run --dry-run` prints: the jobs, and with --verbose the resolved config and what each job reads."""

from collections import Counter
from collections.abc import Sequence

from pipeline.config.root import Config
from pipeline.progress import say, say_block
from pipeline.report.console import Report
from pipeline.running.jobs import Job
from pipeline.running.preview import BUILD, PlannedJob

COLUMNS = ("job", "a run would", "what it does")


def print_jobs(planned: Sequence[PlannedJob], notes: Sequence[str], store: object) -> None:
    """To stdout, with `notes` on what the pair leaves out."""
    out = Report()
    out.table(COLUMNS, [[one.job.id, one.action, one.job.summary] for one in planned], left=COLUMNS)
    count = Counter(one.action == BUILD for one in planned)
    out.text(
        f"{count[True]} of {len(planned)} artifacts are to be built; the others are in {store}, or are no artifact"
    )
    for note in notes:
        out.text(note)


def print_config(config: Config, jobs: Sequence[Job]) -> None:
    """To stdout: YAML, and comments."""
    from pipeline.escaping.yaml import yaml_text

    say_block(yaml_text(config.model_dump(mode="json")))
    say("---", "# jobs in execution order, and what each reads")
    say(
        "# JOB#PART is a part of a job's output; pair#shared: vocabulary, stop tokens and context that both models have"
    )
    say("# outside#NAME is an input that no job makes")
    for job in jobs:
        inputs = dict.fromkeys(job.reads.values())  # promote may read one draft under two names
        say(f"# {job.id}: reads {', '.join(inputs) or 'nothing'}")
