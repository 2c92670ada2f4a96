"""The aliases as a state machine: every sequence of up to six events (four in `make test`), with moves by hand, deletions, and
kills.

The states are searched breadth first, and a state that was seen before is not left again: what happens next depends on the state
alone, so this covers all sequences. A state is compared without its change numbers and times, which no decision depends on.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import pytest

from pipeline.registry.aliases import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    Alias,
    Entry,
    Write,
    applied,
    expiry,
    promotion,
    recovery,
    registration,
    rollback,
)
from pipeline.registry.drafts import ALIASES
from pipeline.registry.history import APPROVE, INTERRUPTED, MOVE, ROLLBACK, Change, read_change

State = tuple[object, ...]


def entry_of(versions: int = 3) -> Entry:
    """Registered versions, none of which was promoted."""
    return Entry(versions={str(version): {"understudy.digest": f"d{version}"} for version in range(1, versions + 1)})


def after(entry: Entry, *changes: list[Write]) -> Entry:
    return reduce(applied, [write for change in changes for write in change], entry)


class Step(NamedTuple):
    """An event and the writes that it makes, none for what is done by hand."""

    name: str
    writes: list[Write]
    entry: Entry  # afterwards, if nobody kills it


def steps(entry: Entry) -> Iterator[Step]:
    """Everything that a run, a person or MLflow's page can do next. Time is the number of the change."""
    time = f"t{entry.change + 1}"
    changes: dict[str, list[Write]] = {}
    for version in (one for one in entry.versions if one != entry.champion):
        changes[f"promote {version}"] = promotion(entry, version, time, run=f"run-{version}", why="gain")
        if version != entry.challenger:  # it keeps its deadline
            changes[f"register {version}"] = registration(entry, version, time, run="r", why="", approve_before="d")
    if entry.challenger not in ("", entry.champion):
        changes["approve"] = promotion(entry, entry.challenger, time, action=APPROVE, by="ann")
        changes["expire"] = expiry(entry, time)
    if entry.champion:
        changes["rollback"] = rollback(entry, entry.rollback_target, time, by="ann")
    for version in entry.versions:
        if entry.champion and version != entry.champion and entry.usable(version):
            changes[f"rollback to {version}"] = rollback(entry, version, time)
    if entry.is_moved_by_hand and entry.champion:
        changes["follow"] = promotion(entry, entry.champion, time, action=MOVE)
    for name, writes in changes.items():
        yield Step(name, writes, after(entry, writes))
    yield from by_hand(entry)


def by_hand(entry: Entry) -> Iterator[Step]:
    for version in ("", *entry.versions):
        if version != entry.champion:
            yield Step(f"set champion {version}", [], applied(entry, Alias(CHAMPION, version)))
    for version in entry.versions:
        left = {alias: held for alias, held in entry.aliases.items() if held != version}  # as MLflow does
        versions = {one: tags for one, tags in entry.versions.items() if one != version}
        yield Step(f"delete {version}", [], replace(entry, aliases=left, versions=versions))


def comparable(entry: Entry) -> State:
    """The state without numbers and times."""
    known = entry.last_change
    flags = [
        (version, bool(state.rolled_back), bool(state.expired), state.replaced, entry.is_approved(version))
        for version in entry.versions
        for state in [entry.version(version)]
    ]
    pending = entry.announced
    return (
        tuple(sorted(entry.aliases.items())),
        tuple(flags),
        None if known is None else known.new,
        None if pending is None else (pending.action, pending.old, pending.new),
    )


def killed(step: Step, entry: Entry) -> Iterator[tuple[int, Entry]]:
    """The entry after each number of writes but all."""
    for done in range(1, len(step.writes)):
        entry = applied(entry, step.writes[done - 1])
        yield done, entry


def check(path: tuple[str, ...], before: Entry, step: Step) -> None:
    """What holds after a complete change."""
    where, entry = (*path, step.name), step.entry
    assert entry.announced is None, where
    assert before.change + 1 == entry.change == entry.history[-1].number, where
    assert not entry.version(entry.previous).rolled_back or entry.previous == before.previous, where
    assert entry.challenger in ("", before.challenger) or step.name.startswith("register"), where
    assert not entry.is_moved_by_hand or before.is_moved_by_hand, where
    if step.name.startswith(("promote", "approve", "follow", "rollback")):
        assert not entry.version(entry.champion).rolled_back, where
        assert not entry.version(entry.previous).rolled_back, where
        assert entry.previous != entry.champion or not entry.champion, where
        assert not entry.challenger, where


@pytest.mark.parametrize(
    ("versions", "events"), [(2, 4), *(pytest.param(*case, marks=pytest.mark.long) for case in ((2, 6), (3, 4)))]
)
def test_every_sequence_of_events_keeps_the_promises(versions: int, events: int) -> None:
    """What a change leaves is consistent, also after a kill between any two writes and moves by hand in between."""
    start = entry_of(versions)
    seen, broken_before = {comparable(start)}, set[State]()
    frontier: list[tuple[tuple[str, ...], Entry]] = [((), start)]
    for _ in range(events):
        reached: list[tuple[tuple[str, ...], Entry]] = []
        for path, entry in frontier:
            ends: list[tuple[str, Entry]] = []
            unchanged = comparable(entry)
            for step in steps(entry):
                ends.append((step.name, step.entry))
                if step.writes:
                    check(path, entry, step)
                    changed = comparable(step.entry)
                for done, broken in killed(step, entry):
                    if (state := comparable(broken)) not in broken_before:
                        broken_before.add(state)
                        where = f"{step.name}, killed after {done}"
                        ends.append((where, check_recovery((*path, where), unchanged, changed, step, done, broken)))
                        ends += [(f"{where}, {one.name}", one.entry.completed) for one in by_hand(broken)]
            for name, end in ends:
                assert end.announced is None, (*path, name)
                if (state := comparable(end)) not in seen:
                    seen.add(state)
                    reached.append(((*path, name), end))
        frontier = reached
    assert len(seen) > 1000


def check_recovery(
    path: tuple[str, ...], unchanged: State, changed: State, step: Step, done: int, broken: Entry
) -> Entry:
    """A killed change is made or not made, the same however often it is recovered, and its number is used once."""
    repaired = broken.completed
    state = comparable(repaired)
    begun = any(isinstance(write, Alias) for write in step.writes[:done])
    moved = begun or step.name == "follow"  # there a person has moved the alias
    assert state == (changed if moved else unchanged), path
    assert moved or INTERRUPTED == repaired.history[-1].why, path
    assert [] == recovery(repaired), path
    assert step.entry.change == repaired.change, path
    for half in _halves(broken):  # the recovery is killed too
        assert state == comparable(half.completed), path
    return repaired


def _halves(broken: Entry) -> Iterator[Entry]:
    entry = broken
    for write in recovery(broken)[:-1]:
        entry = applied(entry, write)
        yield entry


def test_a_rollback_that_was_killed_is_not_made_twice() -> None:
    """After the alias has moved, the recovery completes it; the next rollback is another one."""
    entry = after(entry_of(), promotion(entry_of(), "1", "t1"))
    for version in ("2", "3"):
        entry = after(entry, promotion(entry, version, f"t{version}"))
    writes = rollback(entry, entry.rollback_target, "t4")
    for done in range(2, len(writes)):
        broken = after(entry, writes[:done])
        assert ("2", "2") == (broken.champion, broken.completed.champion)
        repaired = after(broken, recovery(broken))
        assert {CHAMPION: "2", PREVIOUS: "1"} == repaired.aliases
        assert "t4" == repaired.version("3").rolled_back
        assert (ROLLBACK, 4) == (repaired.history[-1].action, repaired.change)


def test_a_move_by_hand_is_told_from_a_change() -> None:
    """A change that is under way is none."""
    entry = after(entry_of(), promotion(entry_of(), "1", "t1"))
    moved = applied(entry, Alias(CHAMPION, "2"))
    followed = after(moved, promotion(moved, "2", "t2", action=MOVE, by="ann"))

    assert (False, True, False) == (entry.is_moved_by_hand, moved.is_moved_by_hand, followed.is_moved_by_hand)
    assert applied(entry, Alias(CHAMPION, "")).is_moved_by_hand
    assert not after(entry, promotion(entry, "2", "t2")[:2]).is_moved_by_hand
    assert {CHAMPION: "2", PREVIOUS: "1"} == followed.aliases
    assert "t2 move 1 -> 2 by ann" == followed.history[-1].line


@pytest.mark.parametrize("deleted", ["1", "2"])
def test_a_rollback_returns_to_no_version_that_is_gone(deleted: str) -> None:
    """MLflow drops the aliases of a version that is deleted."""
    entry = after(entry_of(), promotion(entry_of(), "1", "t1"))
    for version in ("2", "3"):
        entry = after(entry, promotion(entry, version, f"t{version}"))
    step = next(one for one in by_hand(entry) if one.name == f"delete {deleted}")
    back = after(step.entry, rollback(step.entry, step.entry.rollback_target, "t4"))

    assert ({CHAMPION: "2"} if deleted == "1" else {}) == back.aliases
    assert CHALLENGER not in back.aliases
    assert ALIASES[0] == CHAMPION


@pytest.mark.parametrize(
    ("typed", "kept"), [("größer".encode(), "größer"), (b"gr\xf6\xdfer", "gr\ufffd\ufffder")], ids=["UTF-8", "latin-1"]
)
def test_a_reason_in_any_bytes_is_kept_as_text(typed: bytes, kept: str) -> None:
    """As Python has words of a command line that its locale does not read: no database takes those."""
    reason = typed.decode("ascii", "surrogateescape")
    line = Change(number=1, time="t", action=ROLLBACK, old="2", new="1", why=reason).line
    assert kept == read_change(1, line).why
