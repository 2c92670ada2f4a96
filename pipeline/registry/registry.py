"""The registry of drafts: the champion, the previous champion, promotion and rollback.

One MLflow registered model per target (or deployment), one version per draft that passed, aliases `champion`, `previous`,
`challenger`. Which writes make up a change is decided in `pipeline.registry.aliases`; here they are carried out, under a claim
(`pipeline.registry.claims`), after an interrupted change has been completed. Does not depend on stages. It applies no rules: the
gate has done so.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.names import model_name
from pipeline.registry import aliases, claims
from pipeline.registry.aliases import Entry, Write
from pipeline.registry.changes import make_change, require_expected
from pipeline.registry.drafts import ALIASES, Proposed, RegisteredDraft, RegisteredVersion, Withdrawn
from pipeline.registry.history import APPROVE, MOVE, Change
from pipeline.registry.mlflow_client import Location, tracking_location
from pipeline.registry.mlflow_port import opened
from pipeline.registry.packaging import Package, files_of
from pipeline.registry.port import Port
from pipeline.registry.target_identity import identity_in
from pipeline.registry.version_tags import SHAPE_TAG
from pipeline.store.artifacts import Store
from pipeline.store.times import utc_now

_MOST_NAME = 180  # MLflow has 256, and files of claims and notices add to it


def target_name(config: Config) -> str:
    """How the registry calls the target: `promote.target_name`, else the last word of what names it. UsageError without one."""
    source = config.generate.server.model if config.pair.target.is_served else config.pair.target.source
    if source is None and config.promote.target_name is None:
        raise UsageError(
            "promote.target_name: set it, or generate.server.model: with `source: server` nothing else names the target in the "
            "registry"
        )
    target = config.promote.target_name or str(source).rstrip("/").rpartition("/")[2]
    if not target.strip("."):
        raise UsageError(f"pair.target.source = {source!r} gives no name for the registry; set promote.target_name")
    return target


def champion_lock(name: str) -> str:
    """The lock of the store that is held while the champion of a registered name changes, until its notice was accepted."""
    return f"handover-{name}"


def registered_name(config: Config) -> str:
    """`<target>-draft` or `<target>-draft--<deployment>`, with what a shell or MLflow reads otherwise as escapes."""
    name = f"{model_name(target_name(config))}-draft" + (
        f"--{config.promote.deployment}" if config.promote.deployment else ""
    )
    if len(name) > _MOST_NAME:
        raise UsageError(
            f"{name[:40]}...: the name in the registry has {len(name)} characters, at most {_MOST_NAME} are possible; "
            "set a shorter promote.target_name"
        )
    if "--claim-" in name:
        raise UsageError(f"{name}: '--claim-' marks the registry's locks; choose another promote.deployment")
    return name


def naming(config: Config) -> str:
    """The keys of the config that `registered_name` is made from, in words."""
    first = "the last part of pair.target.source"
    if config.pair.target.is_served:
        first = "generate.server.model"
    if config.promote.target_name:
        first = "promote.target_name"
    return f"{first}, then -draft" + (", then -- and promote.deployment" if config.promote.deployment else "")


_registries: dict[tuple[str, str], "Registry"] = {}


def registry_for(config: Config, store: Store) -> "Registry":
    """The registry entry that `config` promotes to; one per location and name in a process. Touches no network."""
    location, name = tracking_location(config, store), registered_name(config)
    return _registries.setdefault((location.uri, name), Registry(name, location))


class Registry:
    """One registered model. Every method raises RegistryUnavailable, within seconds, where MLflow does not answer."""

    def __init__(self, name: str, location: Location) -> None:
        self.name, self.location = name, location

    def entry(self) -> Entry:
        """Aliases, tags and versions as they are now. A change that is under way is shown as if it were complete."""
        with self._port() as port:
            return port.read().completed

    def change(self) -> int:
        """The number of the last change that is complete, as it is now."""
        with self._port() as port:
            return port.read().change

    def champion(self) -> RegisteredDraft | None:
        """The current champion, or None."""
        with self._port() as port:
            champion = port.read().champion
            return self._draft(port, champion) if champion else None

    def holder(self) -> RegisteredDraft | None:
        """The draft that decides whose this name is: the champion, else the newest version; None if Understudy registered
        none."""
        with self._port() as port:
            entry = port.read().completed
            known = [version for version in entry.versions if entry.version(version).digest]
            version = entry.champion or max(known, key=int, default="")
            return self._draft(port, version) if version else None

    def champion_at(self, version: str) -> RegisteredDraft:
        """The draft that `version` is. UnderstudyError if it was deleted or was not registered by Understudy."""
        with self._port() as port:
            return self._draft(port, version)

    def versions(self) -> list[RegisteredVersion]:
        """Every version; none if nothing was registered yet."""
        entry = self.entry()
        return [
            RegisteredVersion(version, tuple(alias for alias in ALIASES if entry.aliases.get(alias) == version), tags)
            for version, tags in entry.versions.items()
        ]

    def history(self) -> list[Change]:
        """Every change of the aliases, the oldest first."""
        return list(self.entry().history)

    def withdrawn(self, digest: str) -> Withdrawn | None:
        """The version with these weights, if it was rolled back or not approved in time, and not promoted since; else None."""
        entry = self.entry()
        version = _with_digest(entry, digest)
        if not version or version == entry.champion:
            return None
        state = entry.version(version)
        if state.rolled_back:
            return Withdrawn(version, f"rolled back at {state.rolled_back}")
        return Withdrawn(version, f"not approved before {state.approve_before}") if state.expired else None

    def proposed(self, digest: str) -> Proposed | None:
        """The version with these weights, if it was registered for approval; else None."""
        entry = self.entry()
        return _proposed(entry, _with_digest(entry, digest))

    def drop_overdue(self) -> Proposed | None:
        """Delete the alias `challenger` if nobody approved the draft in time. Returns that draft, or None."""
        with self._port() as port:
            entry = port.read().completed
            proposed = _proposed(entry, entry.challenger)
            if proposed is None or proposed.version == entry.champion or not proposed.is_overdue:
                return None

            def plan(now: Entry) -> list[Write]:
                return aliases.expiry(now, utc_now()) if now.challenger == proposed.version else []

            make_change(port, entry.champion, {"run": "expiry"}, plan)
            return proposed

    def fetch(self, draft: RegisteredDraft, into: Path) -> Path:
        """A local directory with the draft's files: the registry's own if it is on this machine, else `into`.

        Raises UnderstudyError if the files are missing or are not those that were promoted.
        """
        with self._port() as port:
            where = port.files_of(draft.version)
        return files_of(self.location, where, draft.digest, f"{draft.name} version {draft.version}", into)

    def promote(
        self, package: Package, expected: RegisteredDraft | None, why: str = "", approval_days: int | None = None
    ) -> RegisteredDraft:
        """Register the draft and make it champion in place of `expected`; with `approval_days`, make it challenger, which
        `approve` makes champion. `why` goes into the history.

        Repeating an interrupted promotion uses the version that already exists, and promoting the champion changes nothing.
        Raises UnderstudyError if the champion is not `expected`, or if a figure is not finite.
        """
        was = "" if expected is None else expected.version
        with self._port() as port:
            try:
                return self._promote(port, package, was, why, approval_days)
            except UnderstudyError:
                champion = port.read().champion
                if not champion or (draft := self._draft(port, champion)).digest != package.digest:
                    raise
                return draft  # another run promoted the same draft in the meantime

    def _promote(
        self, port: Port, package: Package, expected: str, why: str, approval_days: int | None
    ) -> RegisteredDraft:
        entry = port.read().completed
        if entry.champion and self._draft(port, entry.champion).digest == package.digest:
            return self._draft(port, entry.champion)
        require_expected(port, entry.champion, expected)
        version = _with_digest(entry, package.digest) or port.register(package)
        run, facts = package.run_id, {"run": package.run_id, "to": version}
        if approval_days is None:
            make_change(port, expected, facts, lambda now: aliases.promotion(now, version, utc_now(), run=run, why=why))
        elif entry.challenger != version or _proposed(entry, version) is None:  # else it keeps its deadline
            deadline = utc_now(approval_days)
            make_change(
                port,
                expected,
                facts,
                lambda now: aliases.registration(now, version, utc_now(), run=run, why=why, approve_before=deadline),
            )
        return self._draft(port, version)

    def approve(self, version: str, expected: str, run: str, by: str, why: str) -> RegisteredDraft:
        """Make a registered version champion in place of version `expected`, because a person decided it."""

        def plan(now: Entry) -> list[Write]:
            return aliases.promotion(now, version, utc_now(), action=APPROVE, run=run, by=by, why=why)

        with self._port() as port:
            try:
                make_change(port, expected, {"run": run, "to": version}, plan)
            except UnderstudyError:
                if port.read().champion != version:
                    raise  # else another person approved it in the meantime
            return self._draft(port, version)

    def rollback(self, expected: str, target: str, by: str = "", why: str = "") -> None:
        """Make version `target` champion in place of version `expected`, which is marked as rolled back; with an empty
        `target` there is no champion afterwards. Raises UnderstudyError if the champion is not `expected`."""
        with self._port() as port:
            make_change(
                port,
                expected,
                {"run": "rollback"},
                lambda now: aliases.rollback(now, target, utc_now(), by=by, why=why),
            )

    def follow(self, version: str, by: str = "") -> None:
        """Make the move of the alias `champion` to `version`, which a person made by hand, a change of the history."""
        with self._port() as port:
            make_change(
                port,
                version,
                {"run": "move"},
                lambda now: (
                    aliases.promotion(now, version, utc_now(), action=MOVE, by=by) if now.is_moved_by_hand else []
                ),
            )

    def recover(self) -> None:
        """Complete a change whose process died, or mark it as interrupted, and delete the claims of dead processes. A change
        that is under way is left alone."""
        with self._port() as port:
            entry = port.read()
            if entry.announced is not None and claims.is_abandoned(port, entry.change + 1):
                make_change(port, entry.completed.champion, {"run": "recovery"}, lambda _: [])
            claims.sweep(port, entry.change)

    def note_export(self, version: str, where: str) -> None:
        """Write into the version's tags where it was exported to."""
        with self._port() as port:
            port.write(aliases.VersionTag(version, "export", where))

    def _port(self) -> AbstractContextManager[Port]:
        return opened(self.location, self.name)

    def _draft(self, port: Port, version: str) -> RegisteredDraft:
        record = port.version(version)
        state = aliases.VersionState(record.tags)
        if not state.digest:
            raise UnderstudyError(
                f"{self.name} version {version} was not registered by Understudy (no tag "
                "understudy.digest); move the alias `champion` to one that was, or delete the alias"
            )
        return RegisteredDraft(
            name=self.name,
            version=record.version,
            digest=state.digest,
            change=state.change,
            run=state.run,
            mlflow_run=record.mlflow_run,
            shape=record.tags.get(SHAPE_TAG, ""),
            target=identity_in(record.tags),
        )


def _with_digest(entry: Entry, digest: str) -> str:
    """The oldest version with these weights, such as one of an interrupted promotion; empty if there is none."""
    versions = [version for version in entry.versions if entry.version(version).digest == digest]
    return min(versions, key=int, default="")


def _proposed(entry: Entry, version: str) -> Proposed | None:
    state = entry.version(version)
    if not state.approve_before:
        return None
    return Proposed(
        version=version,
        approve_before=state.approve_before,
        rolled_back=state.rolled_back,
        challenger=entry.challenger,
        champion=entry.champion,
    )
