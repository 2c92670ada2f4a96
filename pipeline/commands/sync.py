"""`understudy sync`: uploads to MLflow what could not be uploaded while a run went on."""

from pathlib import Path
from typing import Annotated

import typer


def sync(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids; without any, all runs that have ended.")] = None,
    store: Annotated[Path, typer.Option(help="The store that holds the runs.")] = Path(".understudy"),
) -> None:
    """Upload runs to MLflow, as far as it does not have them yet. Repeating it changes nothing."""
    from pipeline.config.loading import parse_config
    from pipeline.errors import UnderstudyError
    from pipeline.progress import Progress
    from pipeline.registry.tracking import Tracker, ui_link
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import list_runs, require_run

    where, progress, failed = Store(store), Progress(), list[str]()
    chosen: list[str] = runs or list_runs(where) or ["latest"]
    for record in [require_run(where, run) for run in chosen]:
        if record.state == "running" and not runs:  # its own process uploads it, and writes the same record
            progress.line(f"{record.id}: still running, or killed; name it to upload it all the same")
            continue
        tracker = Tracker(parse_config(record.config, f"run {record.id}"), where, progress)
        if not tracker.sync(record):
            failed.append(record.id)
            break  # the others would wait for the same server
        typer.echo(f"{record.id}: {ui_link(record)}")
    if failed:
        raise UnderstudyError(f"{failed[0]} was not uploaded; run `understudy sync` again when the server answers")
