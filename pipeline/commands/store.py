"""`understudy store`: maintenance of a store. `sync` uploads to MLflow what could not be uploaded during a run."""

from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath


def sync(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Ids of runs; all runs that have ended by default.")
    ] = None,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Upload to MLflow the runs that it does not have yet. Repeating the command changes nothing."""
    from pipeline.config.loading import parse_stored_config
    from pipeline.errors import UnderstudyError, UsageError
    from pipeline.progress import Progress
    from pipeline.registry.tracking import Tracker, ui_link
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import list_runs, require_run

    where, progress, failed = Store(store), Progress(), list[str]()
    chosen: list[str] = runs or list_runs(where) or ["latest"]
    for record in [require_run(where, run) for run in chosen]:
        if record.state == "running" and not runs:  # its own process uploads it, and writes the same record
            progress.line(f"{record.id}: still running, or killed; give its id to upload it anyway")
            continue
        try:
            tracker = Tracker(parse_stored_config(record.config, f"run {record.id}"), where, progress)
        except UsageError as error:  # made by another version; the other runs can be uploaded all the same
            progress.warn(str(error))
            continue
        if not tracker.sync(record):
            failed.append(record.id)
            break  # the others would wait for the same server
        typer.echo(f"{record.id}: {ui_link(record, where)}")
    if failed:
        raise UnderstudyError(
            f"{failed[0]} was not uploaded; run `understudy store sync` again when the server answers"
        )
