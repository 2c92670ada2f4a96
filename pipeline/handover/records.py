"""What the records of runs have of their drafts, derived from the registry. A record is a copy for people: nothing reads a
promotion from it."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import UnderstudyError
from pipeline.registry.aliases import Entry
from pipeline.registry.history import APPROVE, ROLLBACK, Change
from pipeline.registry.tracking import PAGE, Tracker
from pipeline.review.run_page import run_page
from pipeline.store.artifacts import Store
from pipeline.store.atomic import replacing
from pipeline.store.runs import RunRecord, readable_run, run_directory, run_lock

_DERIVED = ("result", "approve_with", "approved_by", "approved_at", "rolled_back_by", "export")


def update_records(entry: Entry, export: Path | None, store: Store, tracker: Tracker) -> None:
    """Bring the records of the runs that registered a version up to date, and what MLflow shows of them.

    Runs that this store does not have or cannot read, and runs that a process is working on, are left out: the latter are met
    again the next time. `export`: where the champion was exported to.
    """
    for version in entry.versions:
        run = entry.version(version).run
        if not run or readable_run(store, run) is None:
            continue
        with store.try_lock(run_lock(run)) as free:
            if free:
                _update(entry, version, readable_run(store, run), export, store, tracker)


def _update(
    entry: Entry, version: str, record: RunRecord | None, export: Path | None, store: Store, tracker: Tracker
) -> None:
    if record is None or "promote" not in record.jobs or record.promotion.get("version") != version:
        return
    notes = _notes(entry, version, record.promotion)
    if export is not None and version == entry.champion:
        notes["export"] = str(export)
    if notes != record.promotion:
        record.jobs["promote"] = replace(record.jobs["promote"], notes=notes)
        # The record last: what a killed process had not derived from it is derived by the next one, which finds other notes.
        _write_page(record, store)
        tracker.sync(record)
        record.save(store)


def _write_page(record: RunRecord, store: Store) -> None:
    """The review page has in its first line what became of the draft. Its decision may no longer be in the store."""
    page = run_directory(store, record.id) / PAGE
    if page.is_file():
        with suppress(UnderstudyError):
            text = run_page(store, record)
            with replacing(page) as partial:
                partial.write_text(text, encoding="utf-8")


def _notes(entry: Entry, version: str, before: dict[str, Any]) -> dict[str, Any]:
    """The notes of the job that promoted or proposed `version`, as the registry has it now."""
    state = entry.version(version)
    kept = {name: note for name, note in before.items() if name not in _DERIVED}
    if version == entry.challenger and version != entry.champion:
        waits = {"result": f"challenger, to be approved before {state.approve_before}"}
        return kept | waits | {name: before[name] for name in ("approve_with",) if name in before}
    if state.rolled_back:
        by = _last(entry, ROLLBACK, old=version)
        outcome = {"result": f"rolled back at {state.rolled_back}"}
        return kept | outcome | ({"rolled_back_by": by.by} if by is not None and by.by else {})
    if state.expired:
        return kept | {"result": f"refused, not approved before {state.approve_before}"}
    if not state.change:
        return before  # a challenger that another one replaced
    approved = _last(entry, APPROVE, new=version)
    by_whom = {} if approved is None else {"approved_by": approved.by, "approved_at": approved.time}
    exported = {"export": before["export"]} if "export" in before else {}
    result = before["result"] if str(before.get("result", "")).startswith("already") else "promoted"
    return kept | {"result": result} | by_whom | exported


def _last(entry: Entry, action: str, *, old: str | None = None, new: str | None = None) -> Change | None:
    changes = [
        change
        for change in entry.history
        if change.action == action
        and not change.is_interrupted
        and old in (None, change.old)
        and new in (None, change.new)
    ]
    return changes[-1] if changes else None
