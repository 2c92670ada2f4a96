"""The aliases of a registered model as a state machine: what each change writes, and how an interrupted one is completed.

Pure: an `Entry` is the registered model as it was read, a change is a list of writes, and `applied` is what a write does. A
change announces itself in the history, moves its alias, and writes the rest; its number is the last write. A process that dies
before the alias has moved has changed nothing; after that, `recovery` writes the rest, which follows from the announcement.
Every write may be repeated. Does not depend on MLflow, claims or the files of drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from pipeline.errors import UnderstudyError
from pipeline.registry.drafts import CHALLENGER, CHAMPION, PREVIOUS
from pipeline.registry.history import (
    APPROVE,
    EXPIRE,
    INTERRUPTED,
    MOVE,
    NONE,
    PROMOTE,
    REGISTER,
    ROLLBACK,
    Change,
    read_change,
)

_HISTORY = "understudy.history."  # tags of the registered model, one for each change
_CHANGE = (
    "understudy.change"  # of the model: the number of the last change; of a version: of the one that made it champion
)
# Tags of a version. `replaced`: the champion before it; the others are times.
DIGEST, RUN = "understudy.digest", "understudy.run"
_REPLACED, _PROMOTED_AT = "understudy.replaced", "understudy.promoted_at"
_ROLLED_BACK, _APPROVE_BEFORE, _EXPIRED = (
    f"understudy.{name}" for name in ("rolled_back_at", "approve_before", "expired_at")
)


@dataclass(frozen=True)
class Alias:
    """Set an alias; an empty version deletes it."""

    name: str
    version: str


@dataclass(frozen=True)
class ModelTag:
    """Set a tag of the registered model."""

    key: str
    value: str


@dataclass(frozen=True)
class VersionTag:
    """Set a tag of a version; None deletes it."""

    version: str
    key: str
    value: str | None


Write = Alias | ModelTag | VersionTag


@dataclass(frozen=True)
class VersionState:
    """The use of a version, by its tags. Times are empty where it did not happen."""

    tags: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The digest of the weights; empty for a version that Understudy did not register."""
        return self.tags.get(DIGEST, "")

    @property
    def run(self) -> str:
        return self.tags.get(RUN, "")

    @property
    def change(self) -> int:
        """The number of the change that made it champion; 0 if none did."""
        return _number(_CHANGE, self.tags.get(_CHANGE, "0"))

    @property
    def replaced(self) -> str:
        """The champion that it replaced; empty if there was none."""
        replaced = self.tags.get(_REPLACED, NONE)
        return "" if replaced == NONE else replaced

    @property
    def rolled_back(self) -> str:
        return self.tags.get(_ROLLED_BACK, "")

    @property
    def approve_before(self) -> str:
        return self.tags.get(_APPROVE_BEFORE, "")

    @property
    def expired(self) -> str:
        return self.tags.get(_EXPIRED, "")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A registered model as it was read: aliases, tags, and tags by version. An entry that does not exist yet is empty."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def champion(self) -> str:
        return self.aliases.get(CHAMPION, "")

    @property
    def previous(self) -> str:
        return self.aliases.get(PREVIOUS, "")

    @property
    def challenger(self) -> str:
        return self.aliases.get(CHALLENGER, "")

    @property
    def change(self) -> int:
        """The number of the last change that is complete."""
        return _number(_CHANGE, self.tags.get(_CHANGE, "0"))

    @cached_property
    def history(self) -> tuple[Change, ...]:
        """Every change, the oldest first."""
        numbers = {key: key.removeprefix(_HISTORY) for key in self.tags if key.startswith(_HISTORY)}
        lines = {_number(key, number): self.tags[key] for key, number in numbers.items()}
        return tuple(read_change(number, line) for number, line in sorted(lines.items()))

    @property
    def announced(self) -> Change | None:
        """The change that is under way, or whose process died."""
        line = self.tags.get(_history_key(self.change + 1))
        return None if line is None else read_change(self.change + 1, line)

    @property
    def last_change(self) -> Change | None:
        """The last complete change of the champion."""
        complete = (change for change in reversed(self.history) if change.number <= self.change)
        return next((change for change in complete if change.moves_champion and not change.is_interrupted), None)

    @property
    def is_moved_by_hand(self) -> bool:
        """Whether the champion is another than the last change left. Not while a change is under way."""
        return self.announced is None and self.champion != _known(self)

    @property
    def completed(self) -> "Entry":
        """The entry once the announced change is completed or marked as interrupted."""
        return reduce(applied, recovery(self), self)

    def version(self, version: str) -> VersionState:
        """What is known of a version; one that was deleted has no tags."""
        return VersionState(self.versions.get(version, {}))

    def is_approved(self, version: str) -> bool:
        """Whether the version was made champion by a person or by a run, at any time."""
        return any(
            change.new == version and change.action in (APPROVE, PROMOTE) and not change.is_interrupted
            for change in self.history
        )

    def usable(self, version: str) -> str:
        """`version` if a rollback may return to it: it exists and was not rolled back. Else empty."""
        return version if version in self.versions and not self.version(version).rolled_back else ""

    @property
    def rollback_target(self) -> str:
        """The version that a rollback of the champion returns to; empty if there is none."""
        target = self.previous if self.previous != self.leaving else self.version(self.leaving).replaced
        return self.usable(target)

    @property
    def leaving(self) -> str:
        """The version that a rollback marks: the champion, or the one that the last change left if its alias was deleted."""
        return self.champion or _known(self)


def promotion(
    entry: Entry, version: str, time: str, *, action: str = PROMOTE, run: str = "", by: str = "", why: str = ""
) -> list[Write]:
    """Make `version` champion; the champion becomes `previous`. A challenger was compared with the champion that leaves, so it
    is no challenger afterwards. `action`: PROMOTE, APPROVE, or MOVE for an alias that was moved by hand already."""
    return _change(entry, action, _known(entry) if action == MOVE else entry.champion, version, time, run, by, why)


def rollback(entry: Entry, target: str, time: str, *, by: str = "", why: str = "") -> list[Write]:
    """Make `target` champion in place of the champion, which is marked as rolled back; an empty `target` leaves no champion.
    The version that `target` had replaced becomes `previous`, and there is no challenger."""
    return _change(entry, ROLLBACK, entry.leaving, target, time, "", by, why)


def registration(entry: Entry, version: str, time: str, *, run: str, why: str, approve_before: str) -> list[Write]:
    """Make `version` challenger, to be approved before a time."""
    change = Change(
        number=entry.change + 1, time=time, action=REGISTER, old=entry.challenger, new=version, run=run, why=why
    )
    deadline = VersionTag(
        version, _APPROVE_BEFORE, approve_before
    )  # before the alias: the announcement does not hold it
    return [_announced(change), deadline, Alias(CHALLENGER, version), *_rest(entry, change)]


def expiry(entry: Entry, time: str) -> list[Write]:
    """The challenger was not approved in time."""
    why = f"nobody approved it before {entry.version(entry.challenger).approve_before}"
    change = Change(number=entry.change + 1, time=time, action=EXPIRE, old=entry.challenger, new="", why=why)
    return [_announced(change), Alias(CHALLENGER, ""), *_rest(entry, change)]


def recovery(entry: Entry) -> list[Write]:
    """What completes the announced change if its alias has moved, and marks it as interrupted if not. Empty if none is
    announced."""
    change = entry.announced
    if change is None:
        return []
    now = entry.challenger if change.moves_challenger else entry.champion
    if now == _version(change.new):
        return _rest(entry, change)
    return [_announced(replace(change, why=INTERRUPTED)), numbered(change.number)]


def applied(entry: Entry, write: Write) -> Entry:
    """The entry after a write."""
    match write:
        case Alias(name, version):
            rest = {alias: held for alias, held in entry.aliases.items() if alias != name}
            return replace(entry, aliases=rest | ({name: version} if version else {}))
        case ModelTag(key, value):
            return replace(entry, tags={**entry.tags, key: value})
        case VersionTag(version, key, found):
            tags = {tag: value for tag, value in entry.versions.get(version, {}).items() if tag != key}
            tags |= {} if found is None else {key: found}
            return replace(entry, versions={**entry.versions, version: tags})


def _number(tag: str, text: str) -> int:
    """UnderstudyError for a tag that somebody has changed."""
    if not (text.isascii() and text.isdecimal()):
        raise UnderstudyError(
            f"the tag {tag} in the registry holds {text!r} where Understudy writes a number: it was changed; restore it"
        )
    return int(text)


def _change(entry: Entry, action: str, old: str, new: str, time: str, run: str, by: str, why: str) -> list[Write]:
    """A change of the champion."""
    if entry.challenger not in ("", new):
        dropped = f"challenger {entry.challenger} was compared with another champion"
        why = f"{why}; {dropped}" if why else dropped
    change = Change(number=entry.change + 1, time=time, action=action, old=old, new=new, run=run, by=by, why=why)
    return [_announced(change), Alias(CHAMPION, new), *_rest(entry, change)]


def _rest(entry: Entry, change: Change) -> list[Write]:
    """What follows once the alias has moved. It must not depend on how much of it was written before."""
    old, new = _version(change.old), _version(change.new)
    writes: list[Write] = []
    if change.action == EXPIRE:
        writes = _tagged(entry, old, {_EXPIRED: change.time})
    elif change.action == REGISTER:
        writes = [*_tagged(entry, new, {RUN: change.run}), *_untagged(entry, new, _EXPIRED)]
    elif change.action == ROLLBACK:
        previous = entry.usable(entry.version(new).replaced)
        writes = [
            *_tagged(entry, old, {_ROLLED_BACK: change.time}),
            *_held(entry, PREVIOUS, "" if previous in (old, new) else previous),
            *_held(entry, CHALLENGER, ""),
        ]
    else:
        tags = {_CHANGE: str(change.number), _REPLACED: old or NONE, _PROMOTED_AT: change.time}
        previous = entry.usable(old) or entry.usable(entry.version(old).replaced)
        writes = [
            *_tagged(entry, new, tags | ({RUN: change.run} if change.run else {})),
            *_untagged(entry, new, _ROLLED_BACK, _EXPIRED),
            *_held(entry, PREVIOUS, "" if previous == new else previous),
            *_held(entry, CHALLENGER, ""),
        ]
    return [*writes, numbered(change.number)]


def _held(entry: Entry, alias: str, version: str) -> list[Write]:
    """No write for an alias that is as it should be: MLflow lets fewer accounts delete an alias than set one."""
    return [] if entry.aliases.get(alias, "") == version else [Alias(alias, version)]


def _known(entry: Entry) -> str:
    """The champion that the last change left."""
    last = entry.last_change
    return "" if last is None else _version(last.new)


def _version(text: str) -> str:
    """A version as the history names it."""
    return "" if text == NONE else text


def _history_key(number: int) -> str:
    return f"{_HISTORY}{number:06d}"


def _announced(change: Change) -> Write:
    return ModelTag(_history_key(change.number), change.line)


def numbered(number: int) -> Write:
    """Last: once the number is set, the next change can begin."""
    return ModelTag(_CHANGE, str(number))


def _tagged(entry: Entry, version: str, tags: Mapping[str, str]) -> list[Write]:
    """Nothing for a version that was deleted."""
    return [VersionTag(version, key, value) for key, value in tags.items()] if version in entry.versions else []


def _untagged(entry: Entry, version: str, *keys: str) -> list[Write]:
    return [VersionTag(version, key, None) for key in keys if key in entry.versions.get(version, {})]
