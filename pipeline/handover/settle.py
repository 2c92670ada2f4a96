"""Brings what is derived from the alias `champion` into line with it: run records, MLflow's notes, the exported link, the notice.

The alias is the truth. Every step may be repeated, so a call repairs what a killed one has left. Promotion, approval, rollback
and `understudy champion settle` end with it; other commands only report a difference (`difference.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.root import Config
from pipeline.errors import Refused, UnderstudyError
from pipeline.export.link import linked_directory, point_link
from pipeline.handover.champion_export import export_version
from pipeline.handover.moved_alias import reason_not_to_follow
from pipeline.handover.records import update_records
from pipeline.handover.settled import SETTLED, Settled
from pipeline.notices.champion import Champion, Notice
from pipeline.notices.send import receiver_name, send
from pipeline.progress import Progress, say
from pipeline.registry.aliases import Entry
from pipeline.registry.history import NONE, Change
from pipeline.registry.registry import Registry, champion_lock, registry_for
from pipeline.registry.tracking import Tracker
from pipeline.store.artifacts import Store
from pipeline.store.times import utc_now


@dataclass(frozen=True)
class Handover:
    """The registry entry of a config, and the store whose machine follows it."""

    config: Config
    store: Store
    registry: Registry
    progress: Progress


@contextmanager
def handover(config: Config, store: Store, progress: Progress) -> Iterator[Handover]:
    """One process of a store at a time changes the champion and settles."""
    registry = registry_for(config, store)
    store.create()

    def waiting(by: str) -> None:
        progress.line(f"{registry.name}: the champion is being changed ({by}); waiting")

    with store.lock(champion_lock(registry.name), waiting):
        yield Handover(config, store, registry, progress)


def settle(config: Config, store: Store, progress: Progress) -> Entry:
    """Do what is due; returns the registry entry. Raises Refused and UnderstudyError as `recovered_entry` and `finish`."""
    with handover(config, store, progress) as scope:
        entry = recovered_entry(scope)
        finish(scope, entry)
        return entry


def recovered_entry(scope: Handover, may_be_deleted: bool = False) -> Entry:
    """The registry entry, once an interrupted change is completed and a move by hand is followed.

    Refused for a move that may not be followed: link and records stay as they are. `may_be_deleted`: an alias that was deleted by
    hand is returned as it is, for a rollback.
    """
    registry = scope.registry
    registry.recover()
    entry = registry.entry()
    if not entry.is_moved_by_hand or (may_be_deleted and not entry.champion):
        return entry
    if reason := reason_not_to_follow(entry, scope.store, scope.config.promote.by_hand):
        export = scope.config.promote.export
        link = None if export is None else linked_directory(export)
        stays = "" if link is None else f"; the link stays at {link.name}"
        known = "none" if entry.last_change is None else entry.last_change.new
        raise Refused(
            f"{registry.name}: the alias champion was moved by hand and is not followed: {reason}{stays}; set the alias to "
            f"version {known} again, or promote another draft"
        )
    registry.follow(entry.champion)
    scope.progress.line(
        f"{registry.name}: the alias champion was moved to version {entry.champion} by hand; following it"
    )
    return registry.entry()


def finish(scope: Handover, entry: Entry, said: str = "") -> None:
    """Bring everything into line with `entry`. `said` is printed once what is possible is done, before that is written down: a
    person who saw nothing may call again.

    What fails, such as an export, the receiver of the notice or the disk of the records, keeps nothing else back but a notice of
    what is not exported. UnderstudyError is raised at the end; the next call tries again.
    """
    before = _told(scope, entry)
    directory, noticed, failures = None, before.noticed, list[Exception]()
    with _kept(failures):
        directory = _follow_link(scope, entry)
    is_linked = not failures
    with _kept(failures):  # copies for people: a full disk of theirs must not keep the notice back
        update_records(entry, directory, scope.store, Tracker(scope.config, scope.store, scope.progress))
    if is_linked:
        with _kept(failures):
            noticed = _notified(scope, entry, directory, before)
    if said:
        say(said)
    with _kept(failures):
        # A change that another process has announced and not completed may still be made.
        done = Settled(change=min(entry.change, scope.registry.change()), noticed=noticed)
        if done != before:
            SETTLED.write(scope.store, done, scope.registry.name)
    if failures:
        raise _not_settled(scope, entry, failures[0]) from failures[0]


@contextmanager
def _kept(failures: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (UnderstudyError, OSError) as error:
        failures.append(error)


def tell_again(scope: Handover) -> None:
    """Send the notice of the last change once more, marked so: an engine does not serve the champion. UnderstudyError where
    nobody is told, or the receiver does not accept it."""
    settings, entry = scope.config.promote.notice, recovered_entry(scope)
    change = entry.last_change
    if settings is None or change is None:
        raise UnderstudyError(f"{scope.registry.name}: promote.notice is not set, so nothing reloads the engines")
    notice = _notice(scope, entry, change, _follow_link(scope, entry))
    send(settings, replace(notice, repeated=utc_now()))


def _told(scope: Handover, entry: Entry) -> Settled:
    """What this store has announced; nothing, if that was of another registry under the same name."""
    settled = SETTLED.find(scope.store, scope.registry.name)
    return settled if settled is not None and settled.change <= entry.change else Settled(change=0, noticed={})


def _notified(scope: Handover, entry: Entry, directory: Path | None, before: Settled) -> dict[str, int]:
    """The last change whose notice was accepted, by receiver; the configured one gets the last change if it has not yet."""
    settings, change = scope.config.promote.notice, entry.last_change
    if settings is None or change is None:
        return before.noticed
    name = receiver_name(settings)
    if change.number <= before.told(name):
        return before.noticed
    send(settings, _notice(scope, entry, change, directory))
    scope.progress.line(f"notice of change {change.number}: accepted by {name}")
    return before.with_told(name, change.number)


def _follow_link(scope: Handover, entry: Entry) -> Path | None:
    """Where `promote.export` is set: export the champion and let the link point to it, or remove the link. Returns the
    directory."""
    settings = scope.config.promote.export
    if settings is None:
        return None
    directory, linked = None, linked_directory(settings)
    if entry.champion:
        draft = scope.registry.champion_at(entry.champion)
        directory = export_version(settings, scope.store, scope.registry, draft, scope.progress)
    elif entry.last_change is None and linked is not None:
        raise UnderstudyError(
            f"the link in {settings.out} points to {linked.name}, but {scope.registry.name} has never had a champion; check "
            "promote.deployment, promote.target_name and the tracking server, or set another promote.export.out"
        )
    if linked != directory:
        point_link(settings, directory)
        scope.progress.line(
            f"the link in {settings.out} was removed: there is no champion"
            if directory is None
            else f"the link in {settings.out} points to {directory.name}"
        )
    return directory


def _notice(scope: Handover, entry: Entry, change: Change, directory: Path | None) -> Notice:
    state = entry.version(entry.champion)
    champion = Champion(
        version=entry.champion,
        digest=state.digest,
        run=state.run,
        export=None if directory is None else str(directory),
    )
    return Notice(
        name=scope.registry.name,
        change=change.number,
        time=change.time,
        action=change.action,
        champion=champion if entry.champion else None,
        replaced=None if change.old == NONE else change.old,
        by=change.by,
        why=change.why,
    )


def _not_settled(scope: Handover, entry: Entry, error: Exception) -> UnderstudyError:
    champion = f"version {entry.champion} is champion" if entry.champion else "there is no champion"
    return UnderstudyError(
        f"{scope.registry.name}: {champion}, but not settled: {error}; then run `understudy champion settle CONFIG`"
    )
