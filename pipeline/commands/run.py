"""`understudy run`: all stages, or some of them."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import (
    DEFAULT_STORE,
    ConfigPath,
    EvenIfRefused,
    ForcePromote,
    Overrides,
    StorePath,
    require_stage,
)
from pipeline.errors import UsageError
from pipeline.running.stage_list import STAGE_NAMES, STAGES

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.store.artifacts import Store


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
    even_if_refused: EvenIfRefused = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print which jobs would be built and which reused, check the inputs, and run nothing.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --dry-run: also print the resolved config and what each job reads.")
    ] = False,
) -> None:
    """Run the stages from pair to promote. Artifacts that are in the store are reused."""
    from pipeline.config.loading import load_config
    from pipeline.registry.mlflow_client import tracking_location
    from pipeline.store.artifacts import Store

    require_stage(from_, "--from")
    require_stage(until, "--until")
    if verbose and not dry_run:
        raise UsageError("--verbose: works only with --dry-run; leave it out")
    if STAGE_NAMES.index(from_) > STAGE_NAMES.index(until):
        raise UsageError(f"--from {from_} comes after --until {until}; swap them")
    resolved = load_config(config, set_ or ())
    tracking_location(resolved, Store(store))  # an address with credentials is refused before anything is done
    go_on = even_if_refused or STAGE_NAMES.index(until) < STAGE_NAMES.index("gate")  # then the gate is not asked
    if dry_run:
        _dry_run(resolved, Store(store), from_, until, go_on, verbose)
        return
    _run(resolved, Store(store), run_id, (from_, until), verify, force_promote, go_on)


def _run(
    config: "Config",
    store: "Store",
    run_id: str | None,
    between: tuple[str, str],
    verify: bool,
    force_promote: bool,
    go_on: bool,
) -> None:
    """Begin or continue the run, build its stages from the first of `between` to the second, and print what came of it."""
    from dataclasses import replace

    from pipeline.commands.stage_runs import stage_runs
    from pipeline.commands.tables.show import print_summary
    from pipeline.commands.tables.summary import summarise
    from pipeline.handover.difference import report_difference
    from pipeline.handover.settle import settle
    from pipeline.notices.send import check_receiver
    from pipeline.progress import Progress
    from pipeline.review.run_page import render_page
    from pipeline.running.begin import begin
    from pipeline.running.runner import Runner

    check_receiver(config.promote.notice)
    progress = Progress()
    record = begin(config, store, run_id, progress, verify, go_on)
    progress.line(f"run {record.id} in {store}")
    runner = Runner(store, record, progress, stage_runs(), render_page, verify, force_promote, go_on)
    report_difference(config, store, progress)
    try:
        runner.run(*between)
        if between[1] == STAGE_NAMES[-1]:
            settle(config, store, progress)
    finally:
        # Whoever reads it has the reason of a failure on the last line, from the error itself.
        print_summary(replace(summarise(store, record), failure=""), with_commands=False)


def _dry_run(given: "Config", store: "Store", first: str, last: str, go_on: bool, verbose: bool) -> None:
    """Prints before it checks, so that a config with a mistake is printed too. A local pair decides some of the jobs."""
    from pipeline.commands.tables.dry_run import print_config, print_jobs, print_memory
    from pipeline.errors import UnderstudyError
    from pipeline.planning.earlier_runs import measurements
    from pipeline.planning.forecast import forecast, source_readers
    from pipeline.planning.local_sizes import with_local_sizes
    from pipeline.planning.memory import memory_of
    from pipeline.progress import Progress
    from pipeline.running.environment import require_device, require_ray
    from pipeline.running.inputs import require_inputs
    from pipeline.running.jobs import jobs_of
    from pipeline.running.local_pair import check_local_pair
    from pipeline.running.preview import BUILD, preview, require_stored_prompts
    from pipeline.running.prompt_survey import require_prompts

    mistake, notes, resolved = None, list[str](), given
    try:
        if given.execution.ray is not None:
            require_ray()
        require_inputs(given)
        resolved, notes = check_local_pair(given)
    except UnderstudyError as error:
        mistake = error
    if verbose:
        print_config(resolved, jobs_of(resolved))
    if mistake is not None:
        raise mistake
    planned = preview(resolved, store, first, last)
    print_jobs(
        planned,
        [*(reader.line for reader in source_readers(resolved).values()), *notes],
        store,
    )
    built = {name for job in planned if job.action == BUILD for name in (job.job.id, job.job.stage)}
    known = with_local_sizes(resolved, measurements(store, resolved))
    print_memory(memory_of(resolved, forecast(resolved), known).of(built))
    try:
        require_device(given.device, STAGES)
    except UnderstudyError as error:  # it may be looked at on a machine that runs nothing
        Progress().warn(str(error))
    if not require_stored_prompts(resolved, store, Progress(), go_on):
        require_prompts(resolved, Progress(), go_on)
