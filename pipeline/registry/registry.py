"""The registry of drafts: the champion, the previous champion, promotion and rollback.

One MLflow registered model per target (or deployment), one version per draft that passed, aliases `champion`, `previous`,
`challenger`. Every change of the aliases has a number, is made under a claim (`pipeline.registry.claims`) and is recorded in
tags, because MLflow keeps no history of aliases. Does not depend on stages. It applies no rules: the gate has done so.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import RegistryUnavailable, UnderstudyError, UsageError
from pipeline.registry import claims
from pipeline.registry.history import APPROVE, EXPIRE, NONE, PROMOTE, REGISTER, ROLLBACK, Change, read_change
from pipeline.registry.mlflow_client import MISSING, Location, answering, client_for, error_code, tracking_location
from pipeline.registry.packaging import Package, files_of, find_version, register
from pipeline.store.artifacts import Store
from pipeline.store.times import utc_now

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
_HISTORY = "understudy.history."  # tags of the registered model, one per change
# Tags of a version: when it was rolled back; until when it may be approved; since when it may not be approved any more.
_ROLLED_BACK, _APPROVE_BEFORE, _EXPIRED = (
    f"understudy.{name}" for name in ("rolled_back_at", "approve_before", "expired_at")
)
_WAIT_SECONDS = 20.0  # wait for another promotion, which takes about 1 s


@dataclass(frozen=True, kw_only=True)
class RegisteredDraft:
    """A version in the registry. `change` is the number of the change that made it champion, 0 if none did."""

    name: str
    version: str
    digest: str = ""
    change: int = 0
    run: str = ""  # the Understudy run that promoted it
    mlflow_run: str = ""  # the MLflow run its figures are logged in


@dataclass(frozen=True)
class Withdrawn:
    """A version that stays out of use until a person promotes it again. `what` says since when and why."""

    version: str
    what: str  # such as `rolled back at TIME`


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """A version that was registered for approval, and the aliases as they are."""

    version: str
    approve_before: str
    rolled_back: str  # when; empty if it was not
    challenger: str
    champion: str

    @property
    def is_overdue(self) -> bool:
        return self.approve_before < utc_now()


@dataclass(frozen=True)
class RegisteredVersion:
    """A version as MLflow lists it."""

    version: str
    aliases: tuple[str, ...]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class _State:
    """The registry entry as it is now. Versions are str; "" stands for no version."""

    champion: str = ""
    previous: str = ""
    challenger: str = ""
    change: int = 0


def registered_name(config: Config) -> str:
    """`<target>-draft` or `<target>-draft--<deployment>`, without what MLflow forbids in names."""
    source = config.generate.server.model if config.pair.target.is_served else config.pair.target.source
    if source is None and config.promote.target_name is None:
        raise UsageError(
            "promote.target_name: set it, or generate.server.model: with `source: server` nothing else names the target in the "
            "registry"
        )
    target = config.promote.target_name or str(source).rstrip("/").rpartition("/")[2]
    target = re.sub(r"[^A-Za-z0-9._-]", "", target)
    if not target.strip("."):
        raise UsageError(f"pair.target.source = {source!r} gives no name for the registry; set promote.target_name")
    name = f"{target}-draft" + (f"--{config.promote.deployment}" if config.promote.deployment else "")
    if "--claim-" in name:
        raise UsageError(f"{name}: '--claim-' marks the registry's locks; choose another promote.deployment")
    return name


_registries: dict[tuple[str, str], "Registry"] = {}


def registry_for(config: Config, store: Store) -> "Registry":
    """The registry entry that `config` promotes to; one per location and name in a process. Touches no network."""
    location, name = tracking_location(config, store), registered_name(config)
    return _registries.setdefault((location.uri, name), Registry(name, location))


class Registry:
    """One registered model. Every method raises RegistryUnavailable, within seconds, where MLflow does not answer."""

    def __init__(self, name: str, location: Location) -> None:
        self.name, self.location = name, location

    def champion(self) -> RegisteredDraft | None:
        """The current champion, or None."""
        with self._client() as client:
            state = self._state(client)
            return self._draft(client, state.champion) if state.champion else None

    def settled_champion(self) -> RegisteredDraft | None:
        """The champion. A promotion that was killed after it had set the aliases is completed first."""
        with self._client() as client:
            champion = self._current(client)
            if champion is not None and claims.sweep(client, self.name, champion.change):
                self._set_alias(client, CHALLENGER, "")
                self._set_change(client, max(champion.change, self._state(client).change))
            return champion

    def champion_at(self, version: str) -> RegisteredDraft:
        """The draft that `version` is. UnderstudyError if it was deleted or was not registered by Understudy."""
        with self._client() as client:
            return self._draft(client, version)

    def versions(self) -> list[RegisteredVersion]:
        """Every version; none if nothing was registered yet."""
        with self._client() as client:
            aliases = asdict(self._state(client))
            found, token = [], None
            while True:
                page = client.search_model_versions(f"name = '{self.name}'", max_results=1000, page_token=token)
                for one in page:
                    held = tuple(
                        alias for alias in (CHAMPION, PREVIOUS, CHALLENGER) if aliases[alias] == str(one.version)
                    )
                    found.append(RegisteredVersion(str(one.version), held, dict(one.tags)))
                token = page.token
                if not token:
                    return found

    def withdrawn(self, digest: str) -> Withdrawn | None:
        """The version with these weights, if it was rolled back or not approved in time, and not promoted since; else None."""
        with self._client() as client:
            version = find_version(client, self.name, digest)
            if not version or version == self._state(client).champion:
                return None
            tags = self._version(client, version).tags
            if _ROLLED_BACK in tags:
                return Withdrawn(version, f"rolled back at {tags[_ROLLED_BACK]}")
            return Withdrawn(version, f"not approved before {tags[_APPROVE_BEFORE]}") if _EXPIRED in tags else None

    def proposed(self, digest: str) -> Proposed | None:
        """The version with these weights, if it was registered for approval; else None."""
        with self._client() as client:
            version = find_version(client, self.name, digest)
            return self._proposed(client, version, self._state(client))

    def drop_overdue(self) -> Proposed | None:
        """Delete the alias `challenger` if nobody approved the draft in time. Returns that draft, or None."""
        with self._client() as client:
            state = self._state(client)
            found = self._proposed(client, state.challenger, state)
            if found is None or found.version == state.champion or not found.is_overdue:
                return None
            with self._claim(client, state.champion, {"run": "expiry"}) as (state, claim):
                if state.challenger != found.version:
                    return None
                why = f"nobody approved it before {found.approve_before}"
                self._record_change(client, claim.change, EXPIRE, found.version, "", why=why)
                client.set_model_version_tag(self.name, found.version, _EXPIRED, utc_now())
                self._require_unexpired(claim)
                self._set_alias(client, CHALLENGER, "")
            return found

    def fetch(self, draft: RegisteredDraft, into: Path) -> Path:
        """A local directory with the draft's files: the registry's own if it is on this machine, else `into`.

        Raises UnderstudyError if the files are missing or are not those that were promoted.
        """
        with self._client() as client:
            where = self._files(client, draft)
        return files_of(self.location, where, draft.digest, f"{draft.name} version {draft.version}", into)

    def promote(
        self,
        *,
        model_dir: Path,
        digest: str,
        card: str,
        description: str,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        dataset: tuple[str, str],
        expected: RegisteredDraft | None,
        run_id: str,
        why: str = "",
        approval_days: int | None = None,
    ) -> RegisteredDraft:
        """Register the draft in `model_dir` and make it champion in place of `expected`; with `approval_days`, make it
        challenger, which `approve` makes champion.

        `description` of the version is Markdown. `dataset` is (name, digest) of the data that `metrics` were measured on. `why`
        goes into the history. Repeating an interrupted promotion uses the version that already exists, and promoting the
        champion changes nothing.
        Raises UnderstudyError if the champion is not `expected`, or if a figure is not finite.
        """
        package = Package(
            model_dir=model_dir,
            digest=digest,
            card=card,
            description=description,
            tags=dict(tags),
            metrics=dict(metrics),
            dataset=dataset,
            run_id=run_id,
        )
        with self._client() as client:
            try:
                return self._promote(client, package, expected, why, approval_days)
            except UnderstudyError:
                champion = self._current(client)
                if champion is None or champion.digest != digest:
                    raise
                return champion  # another run promoted the same draft in the meantime

    def _promote(
        self, client: Any, package: Package, expected: RegisteredDraft | None, why: str, approval_days: int | None
    ) -> RegisteredDraft:
        champion = self._current(client)
        if champion is not None and champion.digest == package.digest:
            return champion
        self._require_expected(champion.version if champion else "", expected)
        version = find_version(client, self.name, package.digest) or register(client, self.location, self.name, package)
        if approval_days is None:
            return self._make_champion(client, version, expected, PROMOTE, package.run_id, why=why)
        return self._make_challenger(client, version, expected, package.run_id, why, approval_days)

    def approve(self, version: str, expected: str, run: str, by: str, why: str) -> RegisteredDraft:
        """Make a registered version champion in place of version `expected`, because a person said so."""
        with self._client() as client:
            try:
                return self._make_champion(client, version, expected, APPROVE, run, by, why)
            except UnderstudyError:
                if self._state(client).champion != version:
                    raise
                return self._draft(client, version)  # another person approved it in the meantime

    def _make_champion(
        self,
        client: Any,
        version: str,
        expected: RegisteredDraft | str | None,
        action: str,
        run: str,
        by: str = "",
        why: str = "",
    ) -> RegisteredDraft:
        with self._claim(client, expected, {"run": run, "to": version}) as (state, claim):
            number = claim.change
            self._record_change(
                client, number, action, state.champion, version, run, by, _and_dropped(why, state, version)
            )
            for key, value in (
                ("change", str(number)),
                ("replaced", state.champion or NONE),
                ("run", run),
                ("promoted_at", utc_now()),
            ):
                client.set_model_version_tag(self.name, version, f"understudy.{key}", value)
            self._delete_tags(client, version, _ROLLED_BACK, _EXPIRED)
            self._set_alias(client, CHALLENGER, version)
            self._require_unexpired(claim)
            self._set_alias(client, PREVIOUS, state.champion)
            self._set_alias(client, CHAMPION, version)
            self._set_alias(client, CHALLENGER, "")
        return self._draft(client, version)

    def _make_challenger(
        self, client: Any, version: str, expected: RegisteredDraft | None, run: str, why: str, days: int
    ) -> RegisteredDraft:
        """A draft that is the challenger already keeps its deadline."""
        state = self._state(client)
        if state.challenger == version and self._proposed(client, version, state) is not None:
            return self._draft(client, version)
        with self._claim(client, expected, {"run": run, "to": version}) as (state, claim):
            self._record_change(client, claim.change, REGISTER, state.challenger, version, run, why=why)
            self._delete_tags(client, version, _EXPIRED)
            client.set_model_version_tag(self.name, version, "understudy.run", run)
            client.set_model_version_tag(self.name, version, _APPROVE_BEFORE, utc_now(days))
            self._require_unexpired(claim)
            self._set_alias(client, CHALLENGER, version)
        return self._draft(client, version)

    def rollback(self, by: str = "") -> RegisteredDraft | None:
        """Make `previous` the champion again; the version it had replaced becomes `previous`. Without a `previous` there is no
        champion afterwards. A challenger was compared with the champion that leaves, so it is no challenger afterwards.

        Returns the new champion. Raises UnderstudyError if there is no champion.
        """
        with self._client() as client:
            before = self._state(client)
            if not before.champion:
                raise UnderstudyError(f"{self.name} has no champion: nothing to roll back")
            with self._claim(client, before.champion, {"run": "rollback"}) as (state, claim):
                leaving = state.champion
                tags = self._version(client, leaving).tags
                target = state.previous
                if target == leaving:  # a promotion was interrupted between its two aliases
                    target = self._still_there(client, tags.get("understudy.replaced", NONE))
                after = self._before(client, target)
                self._record_change(
                    client, claim.change, ROLLBACK, leaving, target, by=by, why=_and_dropped("", state, leaving)
                )
                client.set_model_version_tag(self.name, leaving, _ROLLED_BACK, utc_now())
                self._require_unexpired(claim)
                self._set_alias(client, CHAMPION, target)
                self._set_alias(client, PREVIOUS, after if after != target else "")
                self._set_alias(client, CHALLENGER, "")
            return self._draft(client, target) if target else None

    def note_export(self, version: str, where: str) -> None:
        """Write into the version's tags where it was exported to."""
        with self._client() as client:
            client.set_model_version_tag(self.name, version, "export", where)

    def history(self) -> list[Change]:
        """Every change of the aliases, the oldest first."""
        from mlflow.exceptions import MlflowException

        with self._client() as client:
            try:
                tags = dict(client.get_registered_model(self.name).tags)
            except MlflowException as error:
                if error_code(error) == MISSING:
                    return []
                raise
        numbered = {int(key.removeprefix(_HISTORY)): line for key, line in tags.items() if key.startswith(_HISTORY)}
        return [read_change(number, line) for number, line in sorted(numbered.items())]

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        client = client_for(self.location)
        with answering(self.location):
            yield client

    def _state(self, client: Any) -> _State:
        from mlflow.exceptions import MlflowException

        try:
            model = client.get_registered_model(self.name)
        except MlflowException as error:
            if error_code(error) == MISSING:
                return _State()
            raise
        aliases = {str(alias): str(version) for alias, version in dict(model.aliases).items()}
        change = int(model.tags.get("understudy.change", "0"))
        champion, previous, challenger = (aliases.get(alias, "") for alias in (CHAMPION, PREVIOUS, CHALLENGER))
        return _State(champion, previous, challenger, change)

    def _proposed(self, client: Any, version: str, state: _State) -> Proposed | None:
        tags = self._version(client, version).tags if version else {}
        if _APPROVE_BEFORE not in tags:
            return None
        return Proposed(
            version=version,
            approve_before=tags[_APPROVE_BEFORE],
            rolled_back=tags.get(_ROLLED_BACK, ""),
            challenger=state.challenger,
            champion=state.champion,
        )

    def _version(self, client: Any, version: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return client.get_model_version(self.name, version)
        except MlflowException as error:
            if error_code(error) == MISSING:
                raise UnderstudyError(
                    f"{self.name} has no version {version} in {self.location.uri}: it was deleted; run again"
                ) from None
            raise

    def _draft(self, client: Any, version: str) -> RegisteredDraft:
        found = self._version(client, version)
        digest = found.tags.get("understudy.digest")
        if not digest:
            raise UnderstudyError(
                f"{self.name} version {version} was not registered by Understudy (no tag "
                "understudy.digest); move the alias `champion` to one that was, or delete the alias"
            )
        return RegisteredDraft(
            name=self.name,
            version=str(found.version),
            digest=digest,
            change=int(found.tags.get("understudy.change", "0")),
            run=found.tags.get("understudy.run", ""),
            mlflow_run=found.run_id or "",
        )

    def _current(self, client: Any) -> RegisteredDraft | None:
        state = self._state(client)
        return self._draft(client, state.champion) if state.champion else None

    def _require_expected(self, found: str, expected: RegisteredDraft | str | None) -> None:
        was = expected.version if isinstance(expected, RegisteredDraft) else expected or ""
        if found != was:
            raise UnderstudyError(
                f"{self.name}: the champion changed since the examination "
                f"(was version {was or NONE}, is {found or NONE}); run again"
            )

    def _require_unexpired(self, claim: claims.Claim) -> None:
        if claim.expired:
            raise UnderstudyError(
                f"{self.name}: the claim {claim.model_name} took too long and may have been taken "
                "over; no alias was changed, run again"
            )

    @contextlib.contextmanager
    def _claim(
        self, client: Any, expected: RegisteredDraft | str | None, facts: Mapping[str, str]
    ) -> Iterator[tuple[_State, claims.Claim]]:
        """Hold the exclusive claim to the next change. Yields the state as read under the claim."""
        give_up = time.monotonic() + _WAIT_SECONDS
        while True:
            state = self._state(client)
            self._require_expected(state.champion, expected)
            claim = claims.take(client, self.name, state.change + 1, {**facts, "champion": state.champion or NONE})
            if isinstance(claim, claims.Claim):
                if claim.generation == 1:
                    break
                self._note_interrupted(client, claim.change)
                self._set_change(client, claim.change)  # the number of the process that died is not used again
                claims.release(client, claim)
                continue
            if time.monotonic() > give_up:
                raise UnderstudyError(
                    f"{self.name}: another promotion or rollback is under way ({claim.holder}, held "
                    f"as {claim.model_name}); run again, an abandoned claim is taken over after "
                    f"{claims.STALE_SECONDS / 60:.0f} minutes"
                )
            time.sleep(0.2)
        try:
            again = self._state(client)
            self._require_expected(again.champion, expected)
            if again.change + 1 != claim.change:
                raise UnderstudyError(f"{self.name}: another process changed the champion in the meantime; run again")
            yield again, claim
            # Last: once the number is set, the next claim can be taken.
            self._set_change(client, claim.change)
        finally:
            claims.release(client, claim)
        claims.sweep(client, self.name, claim.change)

    def _note_interrupted(self, client: Any, number: int) -> None:
        """Say in the history that a process died before the change that it had announced."""
        line = client.get_registered_model(self.name).tags.get(f"{_HISTORY}{number:06d}")
        if line is None:
            return
        change, state = read_change(number, line), self._state(client)
        if change.new != ((state.challenger if change.moves_challenger else state.champion) or NONE):
            line = replace(change, why="interrupted, nothing changed").line
            client.set_registered_model_tag(self.name, f"{_HISTORY}{number:06d}", line)

    def _set_change(self, client: Any, number: int) -> None:
        client.set_registered_model_tag(self.name, "understudy.change", str(number))

    def _record_change(
        self, client: Any, number: int, action: str, old: str, new: str, run: str = "", by: str = "", why: str = ""
    ) -> None:
        change = Change(number=number, time=utc_now(), action=action, old=old, new=new, run=run, by=by, why=why)
        client.set_registered_model_tag(self.name, f"{_HISTORY}{number:06d}", change.line)

    def _delete_tags(self, client: Any, version: str, *names: str) -> None:
        tags = self._version(client, version).tags
        for name in names:
            if name in tags:
                client.delete_model_version_tag(self.name, version, name)

    def _set_alias(self, client: Any, alias: str, version: str) -> None:
        if version:
            client.set_registered_model_alias(self.name, alias, version)
        else:
            client.delete_registered_model_alias(self.name, alias)

    def _before(self, client: Any, version: str) -> str:
        """The version that `version` replaced when it was promoted, unless that was rolled back or deleted since."""
        if not version:
            return ""
        return self._still_there(client, self._version(client, version).tags.get("understudy.replaced", NONE))

    def _still_there(self, client: Any, version: str) -> str:
        if version == NONE:
            return ""
        try:
            return "" if _ROLLED_BACK in self._version(client, version).tags else version
        except RegistryUnavailable:
            raise
        except UnderstudyError:
            return ""

    def _files(self, client: Any, draft: RegisteredDraft) -> str:
        version = self._version(client, draft.version)
        if str(version.source).startswith("models:/"):
            model_id = str(version.source).removeprefix("models:/")
            return str(client.get_logged_model(model_id).artifact_location)
        return str(version.source)


def _and_dropped(why: str, state: _State, version: str) -> str:
    """`why`, and that a challenger other than `version` is none any more."""
    if state.challenger in ("", version):
        return why
    return "; ".join([*([why] if why else []), f"challenger {state.challenger} was compared with another champion"])
