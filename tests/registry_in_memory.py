"""The registry's port in memory: for tests of what is built on a registry, and not of MLflow.

`tests/integration/test_registry_port.py` holds it equal to MLflow's. Drafts are copied to where a local MLflow would have its
artifacts. Knows no runs, metrics and logged models, and no other process.
"""

import contextlib
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.registry import registry
from pipeline.registry.aliases import Alias, Entry, VersionTag, Write, applied
from pipeline.registry.mlflow_client import Location
from pipeline.registry.mlflow_runs import RUN_TAG
from pipeline.registry.packaging import CARD, Package
from pipeline.registry.port import Port, RegistryPrompt, VersionRecord
from pipeline.registry.tracking import Tracker
from pipeline.store.artifacts import Store


@dataclass
class Model:
    """A registered model. `sources` and `runs` are those of its versions; `last` is the number of the newest that there was."""

    entry: Entry = field(default_factory=Entry)
    sources: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    last: int = 0


@dataclass
class Server:
    """What one address has. A write and a claim are made under its lock, as in a database."""

    models: dict[str, Model] = field(default_factory=dict)
    prompts: dict[str, RegistryPrompt] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class PortInMemory:
    """The registered model `name` of a server."""

    def __init__(self, server: Server, location: Location, name: str) -> None:
        self._server, self._location, self.name = server, location, name

    def read(self) -> Entry:
        model = self._server.models.get(self.name)
        return Entry() if model is None else model.entry  # no write changes an entry in place

    def aliases(self) -> dict[str, str]:
        return dict(self.read().aliases)

    def write(self, write: Write) -> None:
        with self._server.lock:
            model = self._server.models.get(self.name)
            if model is None:
                raise RegistryUnavailable(f"there is no {self.name}")
            version = write.version if isinstance(write, Alias | VersionTag) else ""
            if version and version not in model.entry.versions:
                raise RegistryUnavailable(f"there is no version {version} of {self.name}")
            model.entry = applied(model.entry, write)

    def version(self, version: str) -> VersionRecord:
        entry = self.read()
        if version not in entry.versions:
            raise UnderstudyError(
                f"{self.name} has no version {version} in {self._location.uri}: it was deleted; run again"
            )
        model = self._server.models[self.name]
        return VersionRecord(version, dict(entry.versions[version]), model.sources[version], model.runs[version])

    def files_of(self, version: str) -> str:
        return self.version(version).source

    def register(self, package: Package) -> str:
        package.check()
        assert self._location.artifacts is not None
        files = self._location.artifacts / f"m-{uuid.uuid4().hex}"
        shutil.copytree(package.model_dir, files)
        (files / CARD).write_text(package.card, encoding="utf-8")
        tags = {**package.tags, RUN_TAG: package.run_id, "understudy.digest": package.digest}
        return self.add_version(str(files), tags, run=f"mlflow-{package.run_id}")

    def create_prompt(self, name: str, tags: Mapping[str, str], description: str) -> bool:
        with self._server.lock:
            if name in self._server.prompts or name in self._server.models:
                return False
            self._server.prompts[name] = RegistryPrompt(name, dict(tags), time.time())
            return True

    def prompt(self, name: str) -> RegistryPrompt | None:
        return self._server.prompts.get(name)

    def prompts(self, prefix: str) -> list[RegistryPrompt]:
        return [one for name, one in sorted(self._server.prompts.items()) if name.startswith(prefix)]

    def delete_prompt(self, name: str) -> None:
        with self._server.lock:
            self._server.prompts.pop(name, None)

    def add_version(self, source: str, tags: Mapping[str, str], run: str = "") -> str:
        """What somebody else registered, or `register`: the version. A model that is not there is made."""
        with self._server.lock:
            model = self._server.models.setdefault(self.name, Model())
            model.last += 1
            version = str(model.last)
            model.entry = replace(model.entry, versions={**model.entry.versions, version: dict(tags)})
            model.sources[version], model.runs[version] = source, run
            return version

    def delete_version(self, version: str) -> None:
        """By hand: its aliases go with it."""
        with self._server.lock:
            model = self._server.models[self.name]
            model.entry = replace(
                model.entry,
                versions={name: tags for name, tags in model.entry.versions.items() if name != version},
                aliases={alias: other for alias, other in model.entry.aliases.items() if other != version},
            )


def port_of(registry_entry: registry.Registry) -> contextlib.AbstractContextManager[Port]:
    """The port that the registry uses in this test, MLflow's or one in memory."""
    return registry.opened(registry_entry.location, registry_entry.name)


def set_by_hand(registry_entry: registry.Registry, alias: str, version: str) -> None:
    """What a person does on MLflow's page; an empty version deletes the alias."""
    with port_of(registry_entry) as port:
        port.write(Alias(alias, version))


on_mlflow = pytest.mark.usefixtures("store")  # the fixtures that ask `store_of` are then on MLflow


def store_of(request: pytest.FixtureRequest) -> Store:
    """For a fixture: a store whose registry is in memory, or MLflow's where the test is marked `on_mlflow`."""
    found: Store = request.getfixturevalue("store" if "store" in request.fixturenames else "memory_store")
    return found


@pytest.fixture
def memory_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose registry is in memory, in this process. Runs are not uploaded."""
    servers = defaultdict[str, Server](Server)

    @contextlib.contextmanager
    def opened(location: Location, name: str) -> Iterator[Port]:
        yield PortInMemory(servers[location.uri], location, name)

    monkeypatch.setattr(registry, "opened", opened)
    monkeypatch.setattr(registry, "_registries", {})
    monkeypatch.setattr(Tracker, "sync", lambda *_: False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = Store(tmp_path / "store")
    store.create()
    return store
