"""`understudy champion rollback`: another version becomes champion, and servers follow."""

from dataclasses import dataclass

from pipeline.errors import UnderstudyError, UsageError
from pipeline.handover.settle import Handover, finish, recovered_entry
from pipeline.handover.settled import SETTLED, Settled
from pipeline.registry.aliases import Entry
from pipeline.registry.history import NONE, ROLLBACK, acting_person


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """What the user asked for. `to`: a version; None: the previous champion."""

    to: str | None = None
    reason: str = ""
    may_leave_none: bool = False  # --yes
    dry_run: bool = False


def roll_back(scope: Handover, asked: Rollback) -> str:
    """Roll the champion back, and settle. Returns what to print for a dry run, else prints it.

    A rollback that was killed after the alias had moved is completed, and no second one is made: a person who saw no result
    calls again. An alias that was deleted by hand is rolled back as the champion that it named.
    UsageError for a version that cannot be champion again, and where no champion would be left without --yes.
    """
    entry, name = recovered_entry(scope, may_be_deleted=True), scope.registry.name
    if (unfinished := _unfinished(scope, entry, asked)) is not None:
        if not asked.dry_run:
            finish(scope, entry, unfinished)
        return unfinished
    if not entry.leaving:
        raise UnderstudyError(f"{name} has no champion: nothing to roll back")
    if asked.to is not None and asked.to == entry.champion:
        said = f"{name}: version {asked.to} is champion already"
        if not asked.dry_run:
            finish(scope, entry, said)
        return said
    target = entry.rollback_target if asked.to is None else _required(entry, name, asked.to)
    if not target and not asked.may_leave_none:
        raise UsageError(
            f"{name}: no version is left to roll back to, so there would be no champion: servers that restart would find no "
            "draft; add --yes if you want that"
        )
    said = _said(name, entry.leaving, target)
    if asked.dry_run:
        return said
    _remember_start(scope, entry)
    scope.registry.rollback(entry.champion, target, by=acting_person(), why=asked.reason)
    finish(scope, scope.registry.entry(), said)
    return said


def _unfinished(scope: Handover, entry: Entry, asked: Rollback) -> str | None:
    """What to print for a rollback whose end nobody has seen here, and which may be the one that is asked for; None if there is
    none."""
    change, settled = entry.last_change, SETTLED.find(scope.store, scope.registry.name)
    if change is None or change.action != ROLLBACK or entry.is_moved_by_hand:
        return None
    if settled is None or settled.change >= change.number or asked.to not in (None, change.new):
        return None
    by = f" by {change.by}" if change.by else ""
    return (
        f"{_said(scope.registry.name, change.old, '' if change.new == NONE else change.new)} This was change {change.number}"
        f"{by} at {change.time}, which was not complete here. Nothing else was rolled back; to roll back once more, run the "
        "command again."
    )


def _remember_start(scope: Handover, entry: Entry) -> None:
    """Record the start, by which a rollback that is not settled is distinguished from one that is."""
    settled = SETTLED.find(scope.store, scope.registry.name)
    if settled is None or settled.change > entry.change:
        SETTLED.write(scope.store, Settled(change=entry.change, noticed={}), scope.registry.name)


def _required(entry: Entry, name: str, version: str) -> str:
    if version not in entry.versions:
        raise UsageError(
            f"--to {version}: {name} has no such version; it has {', '.join(entry.versions)}; name one of them"
        )
    state = entry.version(version)
    if state.rolled_back:
        raise UsageError(
            f"--to {version}: it was rolled back at {state.rolled_back}; to promote it again, use `understudy run CONFIG "
            "--force-promote`"
        )
    if not state.change:
        raise UsageError(f"--to {version}: it was never champion; give one that was (`understudy champion history`)")
    return version


def _said(name: str, leaving: str, target: str) -> str:
    now = f"version {target} is champion" if target else "there is no champion"
    return (
        f"{name}: version {leaving} was rolled back; {now}. Later runs do not promote version {leaving}, except with "
        "`understudy run CONFIG --force-promote`."
    )
