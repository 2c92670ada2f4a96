"""`understudy store`: maintenance of a store. `gc` deletes what nothing needs; `sync` uploads to MLflow what could not be
uploaded during a run."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath
from pipeline.progress import Progress, say


def gc(
    keep_runs: Annotated[
        int, typer.Option("--keep-runs", metavar="N", min=0, help="Keep what the latest N finished runs need.")
    ] = 5,
    keep_days: Annotated[
        float, typer.Option("--keep-days", metavar="D", min=0, help="Also keep what runs of the last D days need.")
    ] = 0,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline", metavar="FILE", help="Keep what this baseline file needs. May be given several times."
        ),
    ] = None,
    aliased_only: Annotated[
        bool,
        typer.Option(
            "--aliased-only", help="Of registered drafts, keep only what champion, previous and challenger need."
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete. Without it, only print what would be deleted.")
    ] = False,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Delete artifacts that no draft, run or baseline needs.

    Kept are the artifacts of registered drafts, of running runs, of the latest finished runs and of baselines, with all that they
    were made from. Baseline files are outside the store: name each of them with --baseline. If MLflow does not answer, nothing is
    deleted.
    """
    from pipeline.errors import UsageError
    from pipeline.report.retention import print_review
    from pipeline.running import retention
    from pipeline.running.abandoned import close_abandoned
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import GC_LOCK

    where = Store(store)
    if not where.exists:
        raise UsageError(
            f"--store {store}: there is no store here; name the directory that `understudy run --store` wrote"
        )
    policy = retention.Policy(
        runs=keep_runs, days=keep_days, baselines=tuple(baseline or ()), aliased_only=aliased_only
    )
    if not delete:
        entries = retention.review(where, policy)
        print_review(entries, [entry for entry in entries if not entry.why], deleted=False)
        return
    with where.lock(GC_LOCK, lambda _: Progress().line("a run is starting; waiting")):
        close_abandoned(where, Progress())
        entries = retention.review(where, policy)
        gone = retention.delete(where, entries)
    retention.empty_trash(where)
    print_review(entries, gone, deleted=True)


def sync(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Ids of runs; all runs that have ended by default.")
    ] = None,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Upload to MLflow the runs that it does not have yet. Repeating the command changes nothing."""
    from pipeline.config.stored import run_config
    from pipeline.errors import UnderstudyError, UsageError
    from pipeline.registry.tracking import Tracker, ui_link
    from pipeline.running.abandoned import close_abandoned
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import list_runs, require_run

    where, progress, failed = Store(store), Progress(), list[str]()
    close_abandoned(where, progress)
    chosen: list[str] = runs or list_runs(where) or ["latest"]
    for record in [require_run(where, run) for run in chosen]:
        if record.state == "running" and not runs:  # its own process uploads it, and writes the same record
            progress.line(f"{record.id}: still running; give its id to upload it anyway")
            continue
        try:
            config = run_config(record)
        except UsageError as error:  # made by another version; the other runs can be uploaded all the same
            progress.warn(str(error))
            continue
        tracker = Tracker(config, where, progress)
        if not tracker.sync(record):
            failed.append(record.id)
            break  # the others would wait for the same server
        say(f"{record.id}: {ui_link(record, where)}")
    if failed:
        raise UnderstudyError(
            f"{failed[0]} was not uploaded; run `understudy store sync` again when the server answers"
        )
