"""`understudy run`: all stages, or some of them."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, ForcePromote, Overrides, StorePath
from pipeline.errors import UsageError
from pipeline.progress import say, say_block
from pipeline.running.stage_list import STAGE_NAMES

if TYPE_CHECKING:
    from pipeline.config.root import Config


def run(
    config: ConfigPath,
    set_: Overrides = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="STAGE", help="The first stage to run; earlier stages must be finished.")
    ] = STAGE_NAMES[0],
    until: Annotated[str, typer.Option(metavar="STAGE", help="The last stage to run.")] = STAGE_NAMES[-1],
    store: StorePath = DEFAULT_STORE,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="The id of a new run, or of a run to continue.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash every input file and every reused file again."),
    ] = False,
    force_promote: ForcePromote = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the resolved config and the jobs, check that the inputs exist, and run nothing.",
        ),
    ] = False,
) -> None:
    """Run the stages from pair to promote. Artifacts that are in the store are reused."""
    from pipeline.config.loading import load_config
    from pipeline.registry.mlflow_client import tracking_location
    from pipeline.store.artifacts import Store

    for option, name in (("--from", from_), ("--until", until)):
        if name not in STAGE_NAMES:
            raise UsageError(f"{option} {name}: not a stage; the stages are {', '.join(STAGE_NAMES)}")
    if STAGE_NAMES.index(from_) > STAGE_NAMES.index(until):
        raise UsageError(f"--from {from_} comes after --until {until}")
    resolved = load_config(config, set_ or ())
    tracking_location(resolved, Store(store))  # an address with credentials is refused before anything is done
    if dry_run:
        _dry_run(resolved)
        return
    from pipeline.commands.stage_runs import stage_runs
    from pipeline.handover.difference import report_difference
    from pipeline.handover.notice import check_receiver
    from pipeline.handover.settle import settle
    from pipeline.progress import Progress
    from pipeline.report.run_page import render_page
    from pipeline.report.show import print_summary
    from pipeline.report.summary import summarise
    from pipeline.running.begin import begin
    from pipeline.running.runner import Runner

    check_receiver(resolved.promote.notice)
    target, progress = Store(store), Progress()
    record = begin(resolved, target, run_id, progress, verify)
    progress.line(f"run {record.id} in {target.root}")
    runner = Runner(target, record, progress, stage_runs(), render_page, verify, force_promote)
    report_difference(resolved, target, progress)
    try:
        runner.run(from_, until)
        if until == STAGE_NAMES[-1]:
            settle(resolved, target, progress)
    finally:
        print_summary(summarise(target, record))


def _dry_run(given: "Config") -> None:
    """Prints before it checks, so that a config with a mistake is printed too. A local pair decides some of the jobs."""
    from pipeline.errors import UnderstudyError
    from pipeline.escaping.yaml import yaml_text
    from pipeline.planning.local_pair import check_local_pair
    from pipeline.running.inputs import require_inputs
    from pipeline.running.jobs import expand

    mistake, notes, resolved = None, list[str](), given
    try:
        require_inputs(given)
        resolved, notes = check_local_pair(given)
    except UnderstudyError as error:
        mistake = error
    say_block(yaml_text(resolved.model_dump(mode="json")))
    say("---", "# jobs in execution order, and what each reads")
    say(
        "# JOB#PART is a part of a job's output; pair#shared: vocabulary, stop tokens and context that both models have"
    )
    say("# outside#NAME is an input that no job makes")
    for job in expand(resolved, {}):
        inputs = dict.fromkeys(job.reads.values())  # promote may read one draft under two names
        say(f"# {job.id}: reads {', '.join(inputs) or 'nothing'}")
    for note in notes:
        say(f"# {note}")
    if mistake is not None:
        raise mistake
