"""What may be deleted from a store: whatever no registered draft, no kept or running run and no baseline needs.

A run that starts while this decides waits until it is done (the lock `gc`), so an artifact that a run has found is not deleted.
Everything is renamed into `trash/` first: an artifact is complete or absent.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pipeline.acceptance.baseline import read_baseline
from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.registry.drafts import ALIASES
from pipeline.registry.mlflow_client import store_database, tracking_location
from pipeline.registry.registry import Registry, registered_name
from pipeline.running.plan import plan_of
from pipeline.running.stage_list import STAGE_NAMES
from pipeline.store.artifacts import MANIFEST, Store, read_manifest
from pipeline.store.files import read_user_json
from pipeline.store.runs import RunRecord, is_worked_on, read_runs, run_directory, unreadable_runs

DAY = 86400.0
_ENDED = ("finished", "refused")
_KEY_TAG = "understudy.key."  # before the name of a stage: a tag of a registered draft


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is kept beside registered drafts and running runs."""

    runs: int  # of the latest that finished
    days: float = 0  # age up to which a run is kept
    baselines: Sequence[Path] = ()
    aliased_only: bool = False  # of registered drafts, only those with an alias


@dataclass(frozen=True)
class StoreEntry:
    """Something in the store that could be deleted. `why`: what it is kept for; empty if for nothing."""

    path: Path
    kind: str  # a stage, or another part of the store
    bytes: int
    why: str


class Needs(NamedTuple):
    """Which artifacts a run needs: those in its record, and those whose keys follow from its config and its pinned inputs. Names
    of directories under `artifacts/`. In the stages `unknown` the run needs more: their keys depend on artifacts that are not
    built yet."""

    artifacts: frozenset[str]
    unknown: frozenset[str]


def needs_of(store: Store, record: RunRecord) -> Needs:
    """A run that starts late, or has just begun, has few artifacts in its record but reads those of all stages."""
    recorded, steps = frozenset(entry.directory_name for entry in record.jobs.values()), []
    try:
        plan = plan_of(record, store)
        for step in plan.steps():
            steps.append(step)
            if (artifact := step.find(check=False)) is not None:
                plan.take(step, artifact)
    except UnderstudyError:  # a record of another version, or a damaged artifact
        return Needs(recorded, frozenset(STAGE_NAMES))
    known = recorded.union(step.name for step in steps if step.is_known)
    return Needs(known, frozenset(step.job.stage for step in steps if not step.is_known))


class _Keeper:
    """The artifacts of a store, and why each is kept: the first reason that is given."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._why: dict[str, str] = {}
        self._paths = {path.name: path for path in sorted(store.artifacts.glob("*")) if path.is_dir()}
        self._manifests = {
            name: read_manifest(path) for name, path in self._paths.items() if (path / MANIFEST).exists()
        }
        self._providers: dict[str, set[str]] = {}
        for name, manifest in self._manifests.items():
            for digest in (manifest.key, *manifest.provides.values()):
                self._providers.setdefault(digest, set()).add(name)

    def keep(self, names: Iterable[str], why: str) -> None:
        """Keep the artifacts `names` and what they were made from."""
        rest = list(names)
        while rest:
            name = rest.pop()
            if name in self._manifests and name not in self._why:
                self._why[name] = why
                for digest in self._manifests[name].inputs.values():
                    rest.extend(self._providers.get(digest, ()))

    def keep_stages(self, stages: Iterable[str], why: str) -> None:
        wanted = set(stages)
        self.keep([name for name, manifest in self._manifests.items() if manifest.stage in wanted], why)

    def entries(self) -> list[StoreEntry]:
        problems = []
        for name, path in self._paths.items():
            if name in self._manifests:
                stage, why = self._manifests[name].stage, self._why.get(name, "")
            else:
                stage, why = name.partition("-")[0], f"no {MANIFEST}"
            problems.append(StoreEntry(path, stage, _size(path), why))
        return problems


def why_kept(store: Store, policy: Policy) -> list[StoreEntry]:
    """All artifacts, unfinished work and parts, and downloaded champions, with why they are kept: one function for each reason.
    RegistryUnavailable where MLflow does not answer: then nobody knows what registered drafts need."""
    for run in unreadable_runs(store):
        if is_worked_on(store, run):
            raise UnderstudyError(
                f"run {run}: a process works on it, and its record cannot be read, so its artifacts are unknown; wait for it"
            )
    keeper, records = _Keeper(store), read_runs(store)
    champions = _keep_registered(keeper, records, policy) | _keep_running(keeper, records)
    for record in _kept(records, policy):
        keeper.keep(needs_of(store, record).artifacts, "kept run")
    _keep_for_baselines(keeper, policy)
    return [*keeper.entries(), *_unfinished(store), *_parts(store), *_champions(store, champions)]


def _keep_registered(keeper: _Keeper, records: list[RunRecord], policy: Policy) -> set[str]:
    """What registered drafts need, by their tags and their runs. Returns the digests of those with an alias."""
    by_id, champions = {record.id: record for record in records}, set[str]()
    for registry in _registries(keeper.store, records):
        for version in registry.versions():
            aliases = [alias for alias in ALIASES if alias in version.aliases]
            if not aliases and policy.aliased_only:
                continue
            why = aliases[0] if aliases else "registered"
            keys = {tag.removeprefix(_KEY_TAG): key for tag, key in version.tags.items() if tag.startswith(_KEY_TAG)}
            keeper.keep((f"{stage}-{key}" for stage, key in keys.items()), why)
            if (record := by_id.get(version.tags.get("understudy.run", ""))) is not None:
                keeper.keep(needs_of(keeper.store, record).artifacts, why)
            champions |= {version.tags.get("understudy.digest", "")} if aliases else set()
    return champions


def _keep_running(keeper: _Keeper, records: list[RunRecord]) -> set[str]:
    """What runs that go on at this moment need. Returns the digests of the champions that they are compared with."""
    champions = set[str]()
    for record in records:
        if _is_running(keeper.store, record):
            needs = needs_of(keeper.store, record)
            keeper.keep(needs.artifacts, "running run")
            keeper.keep_stages(needs.unknown, "running run")
            champions |= {record.outside["champion"].digest} if "champion" in record.outside else set()
    return champions


def _keep_for_baselines(keeper: _Keeper, policy: Policy) -> None:
    for path in policy.baselines:
        raw = read_user_json(path, "name a baseline that `understudy check --update-baseline` wrote")
        keeper.keep([f"generate-{read_baseline(raw, str(path)).conditions.completions}"], "baseline")


def delete(store: Store, entries: Iterable[StoreEntry]) -> list[StoreEntry]:
    """Delete what is kept for nothing; call it within the lock in which `why_kept` decided. Returns what was deleted.

    An artifact that a run is building at this moment is left alone.
    """
    gone = []
    for entry in entries:
        if entry.why:
            continue
        with store.try_lock(entry.path.name) as free:
            if free:
                store.trash.mkdir(exist_ok=True)
                entry.path.rename(store.trash / f"{entry.path.name}.{secrets.token_hex(4)}")
                gone.append(entry)
    return gone


def empty_trash(store: Store) -> None:
    """What `delete` renamed, also before it was killed. Nothing reads it, so no lock is needed."""
    for path in store.trash.glob("*"):
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def _registries(store: Store, records: Sequence[RunRecord]) -> list[Registry]:
    """Every registry entry that a run of this store may have written to."""
    registries: dict[tuple[str, str], Registry] = {}
    for record in records:
        promotion = record.promotion
        names, config = {promotion.get("name", "")}, _config(record)
        if config is not None:
            names.add(registered_name(config))
        location = tracking_location(config if config is not None else _bare_config(record), store)
        uris = {location.uri, store_database(store)}
        if promotion:  # MLFLOW_TRACKING_URI may have been another one then
            uris.add((record.mlflow.uri if record.mlflow else None) or store_database(store))
        for uri in uris:
            where = replace(location, uri=uri)
            if where.exists:
                registries |= {(uri, name): Registry(name, where) for name in names if name}
    return list(registries.values())


def _config(record: RunRecord) -> Config | None:
    """None if it was written by another version."""
    try:
        return run_config(record)
    except UsageError:
        return None


def _bare_config(record: RunRecord) -> Config:
    """A config that has nothing of the run's but the tracking server."""
    pair = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    tracking = record.config.get("tracking") or {}
    kept = {name: tracking[name] for name in ("uri", "experiment") if name in tracking}
    raw = {"name": record.name, "pair": pair, "corpus": {"sources": [{"path": "reference"}]}, "tracking": kept}
    return parse_config(raw, f"run {record.id}")


def _is_running(store: Store, record: RunRecord) -> bool:
    """Whether a process works on the run, or the run is unfinished and was worked on within a day, such as between two tasks of a
    scheduler."""
    if is_worked_on(store, record.id):
        return True
    changed = (run_directory(store, record.id) / "run.json").stat().st_mtime
    return record.state not in _ENDED and time.time() - changed < DAY


def _kept(records: Sequence[RunRecord], policy: Policy) -> list[RunRecord]:
    """`records` are the oldest first."""
    ended = [record for record in records if record.state in _ENDED]
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - policy.days * DAY))
    young = [record for record in records if policy.days and record.created >= since]
    return [*ended[max(0, len(ended) - policy.runs) :], *young]


def _unfinished(store: Store) -> list[StoreEntry]:
    """Directories of killed runs. One that was written to within a day may be continued."""
    unused = []
    for path in sorted(store.work.glob("*")):
        young = time.time() - _last_change(path) < DAY
        why = "changed within a day" if young else "running run" if store.is_locked(path.name) else ""
        unused.append(StoreEntry(path, "work", _size(path), why))
    return unused


def _parts(store: Store) -> list[StoreEntry]:
    """Claims, unfinished parts and kept ones of tasks that were killed: the next one on the same artifact removes them too."""
    return [
        StoreEntry(path, "parts", _size(path), "changed within a day" if time.time() - _last_change(path) < DAY else "")
        for path in sorted(store.parts.glob("*"))
    ]


def _champions(store: Store, needed: set[str]) -> list[StoreEntry]:
    """Champions that were downloaded; they can be downloaded again."""
    left = []
    for path in sorted(store.champions.glob("*")):
        partial = re.match(r"\.", path.name) and time.time() - _last_change(path) < DAY
        why = "champion" if path.name in needed else "changed within a day" if partial else ""
        left.append(StoreEntry(path, "champions", _size(path), why))
    return left


def _files(path: Path) -> list[os.stat_result]:
    return [file.lstat() for file in (path.rglob("*") if path.is_dir() else [path]) if not file.is_dir()]


def _size(path: Path) -> int:
    return sum(stat.st_size for stat in _files(path))


def _last_change(path: Path) -> float:
    return max([path.lstat().st_mtime, *(stat.st_mtime for stat in _files(path))])
