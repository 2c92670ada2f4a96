"""`understudy stage`: one stage of a run; what a scheduler's task calls."""

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
from pipeline.running.stage_list import STAGE_NAMES

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.store.artifacts import Store


def stage(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"The stage: {', '.join(STAGE_NAMES)}.")],
    config: ConfigPath,
    run_id: Annotated[
        str, typer.Option("--run", metavar="ID", help=f"The id of the run; {STAGE_NAMES[0]} creates it.")
    ],
    set_: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    shards: Annotated[
        str | None,
        typer.Option(
            metavar="N/M",
            help="Make the Nth of M shares of the shards and end: one of M tasks of a scheduler, all at once. The stage "
            "without this option makes what is missing, and finishes it.",
        ),
    ] = None,
    in_shards: Annotated[
        bool,
        typer.Option(
            "--in-shards", help="Exit 2 for a config whose later stages a scheduler could not make with --shards."
        ),
    ] = False,
    force_promote: ForcePromote = False,
    even_if_refused: EvenIfRefused = False,
) -> None:
    """Run one stage of a run. The stages before it must be finished. A scheduler calls this once a stage."""
    from pipeline.commands.stage_runs import stage_runs
    from pipeline.config.loading import load_config
    from pipeline.handover.settle import settle
    from pipeline.notices.send import check_receiver
    from pipeline.progress import Progress
    from pipeline.review.run_page import render_page
    from pipeline.running.begin import begin
    from pipeline.running.runner import Runner
    from pipeline.running.share_run import IN_PARTS, require_in_parts
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import load_run

    require_stage(name)
    target, progress = Store(store), Progress()
    if shards is not None:
        _share(name, load_config(config, set_ or ()), target, run_id, shards)
        return
    if name != STAGE_NAMES[0] and load_run(target, run_id) is None:
        raise UsageError(f"--run {run_id}: no such run in {target}; the first stage, {STAGE_NAMES[0]}, creates it")
    resolved = load_config(config, set_ or ())
    if in_shards:
        for stage_name in IN_PARTS:
            require_in_parts(stage_name, resolved, "--in-shards")
    check_receiver(resolved.promote.notice)
    record = begin(resolved, target, run_id, progress, even_if_refused=even_if_refused)
    runner = Runner(
        target,
        record,
        progress,
        stage_runs(),
        render_page,
        force_promote=force_promote,
        even_if_refused=even_if_refused,
    )
    runner.run(name, name)
    if name == STAGE_NAMES[-1]:
        settle(resolved, target, progress)


def _share(name: str, config: "Config", store: "Store", run_id: str, shards: str) -> None:
    from pipeline.commands.stage_runs import stage_runs
    from pipeline.progress import Progress
    from pipeline.running.begin import join
    from pipeline.running.parts import Share
    from pipeline.running.share_run import ShareRun, require_in_parts

    require_in_parts(name, config)
    try:
        share = Share.parse(shards)
    except ValueError as error:
        raise UsageError(f"--shards: {error}") from None
    ShareRun(store, join(config, store, run_id), Progress(), stage_runs()[name], share).make(name)
