"""`understudy store`: maintenance of a store. `gc` deletes what nothing needs; `sync` uploads to MLflow what could not be
uploaded during a run."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath, path_option
from pipeline.progress import Progress, say
from pipeline.running.stage_list import STAGE_NAMES

if TYPE_CHECKING:
    from pipeline.running.retention import StoreEntry

COLUMNS = ("stage", "artifacts", "kept", "freed MB", "why kept")  # of `gc`


def gc(
    keep_runs: Annotated[
        int, typer.Option("--keep-runs", metavar="N", min=0, help="Keep what the latest N finished runs need.")
    ] = 5,
    keep_days: Annotated[
        float, typer.Option("--keep-days", metavar="D", min=0, help="Also keep what runs of the last D days need.")
    ] = 0,
    baseline: Annotated[
        list[Path] | None,
        path_option(
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
        entries = retention.why_kept(where, policy)
        print_entries(entries, [entry for entry in entries if not entry.why], deleted=False)
        return
    with where.lock(GC_LOCK, lambda _: Progress().line("a run is starting; waiting")):
        close_abandoned(where, Progress())
        entries = retention.why_kept(where, policy)
        gone = retention.delete(where, entries)
    retention.empty_trash(where)
    print_entries(entries, gone, deleted=True)


def print_entries(entries: Sequence["StoreEntry"], gone: Collection["StoreEntry"], deleted: bool) -> None:
    """Print one row for each stage to stdout. `gone` is what was deleted, or would be."""
    from pipeline.commands.tables.console import Report

    out = Report()
    kinds = sorted({entry.kind for entry in entries}, key=_order)
    if kinds:
        out.table(COLUMNS, [_row(kind, entries, gone) for kind in kinds], left=("stage", "why kept"))
    what = f"{len(gone)} director{'y' if len(gone) == 1 else 'ies'}, {_megabytes(gone)} MB"
    if deleted:
        out.text(f"deleted {what}")
    elif gone:
        out.text(f"{what}, can be deleted; nothing was changed, add --delete to do so")
    else:
        out.text("nothing to delete")


def _row(kind: str, entries: Sequence["StoreEntry"], gone: Collection["StoreEntry"]) -> list[str]:
    mine = [entry for entry in entries if entry.kind == kind]
    freed = [entry for entry in mine if entry in gone]
    reasons = Counter(entry.why for entry in mine if entry.why)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return [kind, str(len(mine)), str(len(mine) - len(freed)), _megabytes(freed), why or "-"]


def _megabytes(entries: Collection["StoreEntry"]) -> str:
    return f"{sum(entry.bytes for entry in entries) / 1e6:,.1f}"


def _order(kind: str) -> tuple[int, str]:
    return (STAGE_NAMES.index(kind) if kind in STAGE_NAMES else len(STAGE_NAMES), kind)


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
