"""What the registry's port answers: the same tests on MLflow and on the one in memory that other tests use."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.models.files import model_digest
from pipeline.registry.aliases import Alias, Entry, ModelTag, VersionTag
from pipeline.registry.mlflow_client import client_for
from pipeline.registry.packaging import Package
from pipeline.registry.port import Port
from pipeline.registry.registry import Registry, registry_for
from pipeline.store.artifacts import Store
from tests.integration.mlflow_fixtures import config_of, make_draft, mlflow_template, store
from tests.registry_in_memory import PortInMemory, memory_store, port_of

__all__ = ["memory_store", "mlflow_template", "store"]

NAME = "reference-draft"


@dataclass(frozen=True)
class Place:
    """A registry that is empty at first."""

    registry: Registry
    root: Path
    delete_version: Callable[[str], None]  # as a person does
    add_version: Callable[[str], str]  # as another program does

    def package(self, name: str, **changes: Any) -> Package:
        draft = self.root / name
        if not draft.exists():
            make_draft(draft, name.encode())
        facts: dict[str, Any] = {"model_dir": draft, "digest": model_digest(draft), "card": f"# Card of {name}"}
        rest: dict[str, Any] = {"description": "Better", "tags": {"target": "reference"}, "metrics": {"alpha": 0.7}}
        return Package(**(facts | rest | {"dataset": ("d", "1"), "run_id": "run-1"} | changes))

    def __call__(self, act: Callable[[Port], Any]) -> Any:
        """What `act` returns, with a port that was just opened."""
        with port_of(self.registry) as port:
            return act(port)


@pytest.fixture(params=["mlflow", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        registry = registry_for(config_of(), request.getfixturevalue("memory_store"))
        with port_of(registry) as port:
            inside = cast(PortInMemory, port)
            yield Place(registry, tmp_path, inside.delete_version, lambda source: inside.add_version(source, {}))
        return
    given: Store = request.getfixturevalue("store")
    registry = registry_for(config_of(), given)
    client = client_for(registry.location)

    def add_version(source: str) -> str:
        return str(client.create_model_version(NAME, source, run_id="r", await_creation_for=0).version)

    yield Place(registry, tmp_path, lambda version: client.delete_model_version(NAME, version), add_version)


@pytest.fixture
def two(place: Place) -> Place:
    """With versions 1 and 2."""
    for name in "ab":
        place(lambda port, name=name: port.register(place.package(name)))
    return place


def test_an_empty_registry_has_nothing(place: Place) -> None:
    """No name, so no aliases, tags, versions, claims; and no error."""
    assert (Entry(), {}) == (place(lambda port: port.read()), place(lambda port: port.aliases()))
    assert ([], None) == (place(lambda port: port.prompts("")), place(lambda port: port.prompt("claim")))
    assert NAME == place(lambda port: port.name)


def test_versions_are_numbered_texts(two: Place) -> None:
    """With the tags of the package, its digest and its run; no alias is set."""
    entry, second = two(lambda port: port.read()), two(lambda port: port.version("2"))
    assert ["1", "2"] == list(entry.versions)
    assert {} == entry.aliases
    expected = {"target": "reference", "understudy.run": "run-1", "understudy.digest": two.package("b").digest}
    assert (
        expected == {key: second.tags[key] for key in expected} == {key: entry.versions["2"][key] for key in expected}
    )
    assert ("2", True) == (second.version, bool(second.mlflow_run))


def test_the_tenth_version_follows_the_ninth(place: Place) -> None:
    """Versions are in the order of their numbers, not of their texts."""
    place(lambda port: port.register(place.package("a")))
    for _ in range(9):
        place.add_version("/nowhere")
    assert [str(number) for number in range(1, 11)] == list(place(lambda port: port.read().versions))


def test_the_files_are_those_of_the_package(two: Place) -> None:
    """A copy with the card; the place from which they were registered is not needed any more."""
    (two.root / "a" / "model.safetensors").unlink()
    files = Path(two(lambda port: port.files_of("1")).removeprefix("file://"))
    assert (b"a", "# Card of a") == ((files / "model.safetensors").read_bytes(), (files / "README.md").read_text())
    assert two(lambda port: port.version("1")).source == two(lambda port: port.files_of("1"))
    assert files.is_relative_to(two.root / "store" / "mlflow" / "artifacts")


def test_equal_files_may_be_registered_twice(two: Place) -> None:
    """Another version; which of them is used is decided elsewhere."""
    again = two(lambda port: port.register(two.package("a")))
    assert ("3", True) == (again, two(lambda port: port.files_of("3")) != two(lambda port: port.files_of("1")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"metrics": {"alpha": float("nan")}}, "alpha: not a finite number"), ({"digest": "other"}, "other was examined")],
)
def test_a_package_with_a_fault_is_not_registered(place: Place, changes: dict[str, Any], said: str) -> None:
    """One line, and the registry is as it was."""
    with pytest.raises(UnderstudyError, match=said):
        place(lambda port: port.register(place.package("a", **changes)))
    assert Entry() == place(lambda port: port.read())


def test_aliases_are_set_moved_and_deleted(two: Place) -> None:
    """One that is not there may be deleted, and both may be repeated."""
    seen = []
    for write in (
        Alias("champion", "1"),
        Alias("previous", "1"),
        Alias("champion", "2"),
        Alias("champion", "2"),
        Alias("previous", ""),
        Alias("previous", ""),
    ):
        two(lambda port, write=write: port.write(write))
        seen.append(two(lambda port: port.aliases()))
        assert seen[-1] == two(lambda port: port.read()).aliases
    both = {"champion": "2", "previous": "1"}
    assert [
        {"champion": "1"},
        {"champion": "1", "previous": "1"},
        both,
        both,
        {"champion": "2"},
        {"champion": "2"},
    ] == seen


def test_tags_of_the_model_are_set(two: Place) -> None:
    """And replaced; text is kept as it is."""
    text = "2026-01-01T00:00:00Z promote none -> 1 because größer, 'quoted'\nand a second line"
    for value in ("first", text):
        two(lambda port, value=value: port.write(ModelTag("understudy.history.000001", value)))
    assert text == two(lambda port: port.read()).tags["understudy.history.000001"]


def test_tags_of_a_version_are_set_and_deleted(two: Place) -> None:
    """Each is that of its version alone; one that is not there may be deleted."""
    before = two(lambda port: port.read()).versions
    for write in (VersionTag("1", "a", "x"), VersionTag("1", "a", "y"), VersionTag("2", "b", "z")):
        two(lambda port, write=write: port.write(write))
    between = two(lambda port: port.read()).versions
    for write in (VersionTag("1", "a", None), VersionTag("1", "a", None), VersionTag("2", "b", None)):
        two(lambda port, write=write: port.write(write))

    assert ("y", None, "z") == (between["1"]["a"], between["1"].get("b"), between["2"]["b"])
    assert before == two(lambda port: port.read()).versions


def test_what_is_not_there_cannot_be_changed(two: Place) -> None:
    """An error of the registry, and nothing is changed."""
    before = two(lambda port: port.read())
    for write in (Alias("champion", "7"), VersionTag("7", "key", "value"), VersionTag("7", "key", None)):
        with pytest.raises(RegistryUnavailable):
            two(lambda port, write=write: port.write(write))
        assert before == two(lambda port: port.read())


def test_a_model_that_is_not_there_cannot_be_changed(place: Place) -> None:
    """Nothing makes it but the registration of a draft."""
    for write in (Alias("champion", "1"), Alias("champion", ""), ModelTag("key", "value")):
        with pytest.raises(RegistryUnavailable):
            place(lambda port, write=write: port.write(write))
        assert Entry() == place(lambda port: port.read())


def test_a_version_that_is_not_there_is_named(two: Place) -> None:
    """With the registry, and what to do."""
    for ask in (lambda port: port.version("7"), lambda port: port.files_of("7")):
        with pytest.raises(UnderstudyError, match=f"{NAME} has no version 7 in .*: it was deleted; run again"):
            two(ask)


def test_a_deleted_version_takes_its_aliases_with_it(two: Place) -> None:
    """Other aliases and the tags of the model stay; no version gets its number again."""
    for write in (Alias("champion", "2"), Alias("challenger", "2"), Alias("previous", "1"), ModelTag("key", "value")):
        two(lambda port, write=write: port.write(write))
    two.delete_version("2")
    entry = two(lambda port: port.read())
    with pytest.raises(UnderstudyError, match="has no version 2"):
        two(lambda port: port.version("2"))
    with pytest.raises(RegistryUnavailable):
        two(lambda port: port.write(Alias("champion", "2")))

    assert ({"previous": "1"}, ["1"], "value") == (entry.aliases, list(entry.versions), entry.tags["key"])
    assert "3" == two(lambda port: port.register(two.package("c")))


def test_versions_of_other_programs_are_versions(two: Place) -> None:
    """They are numbered like ours and have no tags of ours; an alias may point to them."""
    version = two.add_version("/nowhere")
    two(lambda port: port.write(Alias("champion", version)))
    assert ("3", {"champion": "3"}) == (version, two(lambda port: port.aliases()))
    assert {} == dict(two(lambda port: port.version(version)).tags)
    assert "/nowhere" == two(lambda port: port.files_of(version))


def test_models_are_apart(two: Place) -> None:
    """Two names in one registry have versions, aliases and tags of their own."""
    other = registry_for(config_of(promote={"deployment": "chat"}), two.registry.location.lock_in)
    two(lambda port: port.write(Alias("champion", "2")))
    with port_of(other) as port:
        empty, version = port.read(), port.register(two.package("a"))
    assert (Entry(), "1") == (empty, version)
    assert ({"champion": "2"}, ["1", "2"]) == (two(lambda p: p.aliases()), list(two(lambda p: p.read()).versions))


def test_a_claim_is_made_once(place: Place) -> None:
    """Until it is deleted; then again. Its tags and the time of its creation are kept."""
    tags = {"understudy.claim.process": "1 2", "understudy.claim.at": "now"}
    made = [place(lambda port: port.create_prompt("x--claim-1", tags, "text")) for _ in range(2)]
    found = place(lambda port: port.prompt("x--claim-1"))
    place(lambda port: port.delete_prompt("x--claim-1"))
    gone = place(lambda port: port.prompt("x--claim-1"))
    place(lambda port: port.delete_prompt("x--claim-1"))  # once more does nothing
    again = place(lambda port: port.create_prompt("x--claim-1", {}, "text"))

    assert ([True, False], None, True) == (made, gone, again)
    assert tags == {key: found.tags[key] for key in tags}
    assert ("x--claim-1", True) == (found.name, abs(time.time() - found.created) < 60)


def test_a_claim_with_the_name_of_a_model_is_not_made(two: Place) -> None:
    """They share their names."""
    assert not two(lambda port: port.create_prompt(NAME, {}, "text"))
    assert ["1", "2"] == list(two(lambda port: port.read()).versions)


def test_claims_are_listed_by_the_beginning_of_their_names(two: Place) -> None:
    """Models are not among them."""
    for name in ("a--claim-1", "a--claim-2.2", "b--claim-1"):
        two(lambda port, name=name: port.create_prompt(name, {}, "text"))
    named = {
        prefix: [one.name for one in two(lambda port, p=prefix: port.prompts(p))] for prefix in ("a--", "b", "c", "")
    }
    every = ["a--claim-1", "a--claim-2.2", "b--claim-1"]
    assert {"a--": every[:2], "b": every[2:], "c": [], "": every} == {
        key: sorted(found) for key, found in named.items()
    }
