"""Finds the draft, or the config, that a command was given by name. Asks the store's runs, and the registry only for what is
registered. Loads no torch."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.config.quantize import Variant
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.hub import commit_of, fetch
from pipeline.models.names import model_directory
from pipeline.progress import Progress
from pipeline.registry.aliases import Entry
from pipeline.registry.draft_names import (
    CONFIG_FORMS,
    FORMS,
    LATEST,
    RUN_FORMS,
    Directory,
    File,
    Hub,
    Known,
    Named,
    Registered,
    Run,
    parse,
    refuse_numbered,
)
from pipeline.registry.drafts import CHALLENGER, CHAMPION, RegisteredDraft
from pipeline.registry.mlflow_client import tracking_location
from pipeline.registry.named import Draft, run_draft, version_draft
from pipeline.registry.registry import Registry, registered_name, registry_for
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, is_run, read_runs, require_run

EXAMINED = ("distill", "generate", "evaluate/candidate")  # jobs of a run whose draft has an examination


def read_name(text: str, store: Store, option: str = "", forms: str = FORMS) -> Named:
    """What `text` names; another reading of it is said. UsageError if it names nothing."""
    reading = parse(text, Known(str(store), _Runs(store), _Names(store)), option, forms)
    if reading.note:
        Progress().warn(reading.note)
    return reading.named


def find_draft(text: str, store: Store, option: str = "", needs: Sequence[str] = ("distill",)) -> Draft:
    """The draft that `text` names, which is the value of `option`. `latest` is the latest run that has built the jobs `needs`.

    Nothing is downloaded before its directory is asked for. UsageError if it names none, with the forms that there are.
    """
    return draft_of(read_name(text, store, option), text, store, option, needs)


def draft_of(
    named: Named,
    text: str,
    store: Store,
    option: str = "",
    needs: Sequence[str] = ("distill",),
    variant: Variant | None = None,
) -> Draft:
    """The draft, as by `find_draft`, of what `text` names. `variant`: another one of the same run."""
    where = f"{option} {text}".strip()
    match named:
        case Run():
            return run_draft(store, require_run(store, named.id, needs), variant)
        case Registered():
            return version_draft(store, *registered_version(named, store), variant)
        case Directory():
            directory = model_directory(named.path, "draft", where)
            return Draft(label=text, files=lambda: directory, store=store)
        case Hub():
            return Draft(
                label=text, files=lambda: fetch(named.source, commit_of(named.source, named.revision)), store=store
            )
        case File():
            raise UsageError(f"{where}: a file, and no draft; give {FORMS}")


def find_run(text: str | None, store: Store, needs: Sequence[str] = ()) -> RunRecord:
    """The run that `text` names, or that trained the registered draft that it names; None and `latest`: the latest that has built
    the jobs `needs`. UsageError if it names neither."""
    if text is None:
        return require_run(store, None, needs)
    named = read_name(text, store, forms=RUN_FORMS)
    if isinstance(named, Run):
        return require_run(store, named.id, needs)
    if isinstance(named, Registered):
        return draft_of(named, text, store).record
    raise UsageError(f"{text}: no run and no registered draft; give {RUN_FORMS}")


def registered_version(named: Registered, store: Store) -> tuple[Registry, RegisteredDraft]:
    """A version, in the registry of the runs that promote under its name, or else of the latest run. UsageError if there is
    none."""
    name, which = named.name, named.which or CHAMPION
    configs = _Names(store).configs
    if not configs:
        raise UsageError(f"{name}@{which}: {store} has no run that names the registry; name another --store")
    config = configs.get(name) or next(iter(configs.values()))
    require_registry(config, store)
    registry = Registry(name, tracking_location(config, store))
    held = {alias: version.version for version in registry.versions() for alias in (*version.aliases, version.version)}
    if not held:
        known = ", ".join(configs)
        raise UsageError(
            f"{name}: no registered draft of this name in {registry.location.uri}; the runs of {store} promote {known}"
        )
    if which == CHAMPION and which not in held:
        raise UsageError(
            f"{name} has no champion: nothing was promoted yet; it has {', '.join(held)}; name one of them"
        )
    if which not in held:
        raise UsageError(
            f"{name}@{which}: no such version or alias in {registry.location.uri}; it has {', '.join(held)}; name one "
            "of them"
        )
    return registry, registry.champion_at(held[which])


def champion_draft(config: Config, store: Store, variant: Variant | None = None) -> Draft:
    """The champion of a config. UsageError if there is none."""
    require_registry(config, store)
    registry = registry_for(config, store)
    champion = registry.champion()
    if champion is None:
        raise UsageError(f"{registry.name} has no champion: nothing was promoted yet; run `understudy run CONFIG`")
    return version_draft(store, registry, champion, variant)


def read_entry(text: str, store: Store, latest: bool = False) -> File | Run | Registered:
    """What names an entry of the registry: a config, a run, or a name in the registry. UsageError if it is none of these, and,
    without `latest`, for the latest run: what follows or changes the champion does not depend on which run was the last."""
    path = Path(os.path.expanduser(text))
    if "/" in text and not path.exists():
        refuse_numbered(text, text)
    if "/" in text and os.path.isdir(path):
        raise UsageError(f"{text}: a directory, and neither a config nor a registered draft; give {CONFIG_FORMS}")
    if "/" in text or path.suffix in (".yaml", ".yml"):
        return File(path)
    named = read_name(text, store, forms=CONFIG_FORMS)
    if isinstance(named, Directory | Hub):
        raise UsageError(f"{text}: a directory or a model of the hub, and no registered draft; give {CONFIG_FORMS}")
    if named == Run(LATEST) and not latest:
        raise UsageError(f"{text}: this command does not guess its run; give {CONFIG_FORMS}")
    return named


def config_of(named: File | Run | Registered, overrides: Sequence[str], store: Store) -> Config:
    """The config in a file; of a run, its own; of a name, that of the latest run that promotes under it. UsageError if there is
    none, and for `overrides` of a config that is no file."""
    if isinstance(named, File):
        return load_config(named.path, overrides)
    text = named.id if isinstance(named, Run) else named.name
    if overrides:
        raise UsageError(f"--set: {text} has the config of its run; give a config file")
    if isinstance(named, Run):
        return run_config(require_run(store, named.id))
    configs = _Names(store).configs
    if text not in configs:
        names = f"there are {', '.join(configs)}" if configs else "it has no runs"
        raise UsageError(
            f"{text}: no such config file, and no run in {store} promotes under this name: {names}; give {CONFIG_FORMS}"
        )
    return configs[text]


def champion_config(text: str, overrides: Sequence[str], store: Store) -> Config:
    """The config of a command about the champion. UsageError also for a run or a version whose draft is not champion."""
    named = read_entry(text, store)
    config = config_of(named, overrides, store)
    if isinstance(named, File) or (isinstance(named, Registered) and named.which in ("", CHAMPION)):
        return config
    require_registry(config, store)
    draft, registry = draft_of(named, text, store), registry_for(config, store)
    entry = registry.entry()
    if draft.digest != entry.version(entry.champion).digest:
        champion = f"version {entry.champion} is" if entry.champion else "there is none"
        raise UsageError(
            f"{text}: not the champion of {registry.name} ({champion}), and this command is about the champion; give "
            f"{registry.name}{_instead(registry.name, entry, draft)}"
        )
    return config


def _instead(name: str, entry: Entry, draft: Draft) -> str:
    """What else can be done with a version that is not champion."""
    version = next((number for number in entry.versions if entry.version(number).digest == draft.digest), "")
    if when := entry.version(version).rolled_back:
        return f"; version {version} was rolled back at {when}, which `understudy champion settle {name}` completes if needed"
    if not version:
        return ""
    rollback, approval = f"champion rollback {name} --to {version}", f"promote {name}@{CHALLENGER}"
    return f", or make it champion: `understudy {approval if version == entry.challenger else rollback}`"


def require_registry(config: Config, store: Store) -> None:
    """UsageError where nothing was ever promoted from this store."""
    if not tracking_location(config, store).exists:
        raise UsageError(f"--store {store}: there is no registry here; name the store of the run that promoted")


def latest_config(store: Store) -> Config:
    """The config of the store's latest run. UsageError if it has none."""
    return run_config(require_run(store, None))


class _Runs(Collection[str]):
    """Ids of the runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and is_run(self._store, word)

    def __iter__(self) -> Iterator[str]:
        return (record.id for record in read_runs(self._store))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Names(Collection[str]):
    """Names that runs of a store promote under, the latest first, each with the config of the latest run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __contains__(self, word: object) -> bool:
        return word in self.configs

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def configs(self) -> dict[str, Config]:
        configs = dict[str, Config]()
        for record in reversed(read_runs(self._store)):
            if (promoted := _promoted(record)) is not None:
                configs.setdefault(*promoted)
        return configs


def _promoted(record: RunRecord) -> tuple[str, Config] | None:
    """None for a run of another version, or one that names no target."""
    try:
        config = run_config(record)
        return registered_name(config), config
    except UnderstudyError:
        return None
