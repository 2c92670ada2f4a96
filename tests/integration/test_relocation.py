"""A store that was copied or moved is a store of its own: nothing in it names the place it came from."""

import contextlib
import json
import shlex
import shutil
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.errors import UnderstudyError
from pipeline.models.files import model_digest
from pipeline.registry import mlflow_client
from pipeline.registry.mlflow_client import client_for, experiment_id, tracking_location
from pipeline.registry.registry import Registry, registered_name
from pipeline.registry.relocation import TRIED
from pipeline.store.artifacts import Store
from tests.integration.conftest import SMOKE, Place, copy_place, loop, smoke
from tests.integration.mlflow_fixtures import config_of, make_draft, mlflow_template, promote, store

__all__ = ["loop", "mlflow_template", "smoke", "store"]

ODD = "a copy #2, größer"  # a name that is written differently in a URI


@pytest.mark.long
def test_runs_on_both_copies_stay_apart(loop: Place, tmp_path: Path) -> None:
    """After runs in the copy the original has not one file more or other; without the original the copy still works."""
    first = loop.understudy("run", SMOKE, "--run", "original")
    copy = copy_place(loop, tmp_path / ODD)
    before = _files(loop.store)
    second = copy.understudy("run", SMOKE, "--run", "copied")
    shown = copy.understudy("show", "copied")
    untouched = _files(loop.store)
    third = loop.understudy("run", SMOKE, "--run", "original-again")
    runs = [set(_runs(place.store)) for place in (loop, copy)]
    shutil.rmtree(loop.root)
    fetched = _registry(copy.store)
    champion = fetched.champion()
    assert champion is not None
    files = fetched.fetch(champion, copy.root / "unused")
    back = copy.understudy("champion", "rollback", SMOKE, "--yes")
    again = copy.understudy("run", SMOKE, "--run", "alone", "--force-promote")
    assert [0] * 5 == [one.code for one in (first, second, third, back, again)], second.err + again.err
    assert before == untouched
    assert (
        f"mlflow ui --backend-store-uri {shlex.quote(f'sqlite:///{copy.store}/mlflow/mlflow.db')}  # then" in shown.out
    )
    assert [{"first", "original", "original-again"}, {"first", "original", "copied"}] == runs
    assert (True, champion.digest) == (files.is_relative_to(copy.store), model_digest(files))
    assert {"first", "original", "copied", "alone"} == set(_runs(copy.store))
    assert [] == _naming(copy.store, loop.store)
    assert not loop.root.exists()
    loop.cwd.mkdir(parents=True)  # looked at when the test ends


def test_a_moved_store_is_complete(store: Store, tmp_path: Path) -> None:
    """Runs, experiment, champion and its files are found at the new place, and the old place is not made again."""
    draft = _promote(store, tmp_path)
    moved = _moved(store, tmp_path / ODD)
    registry = _registry(moved.root)
    champion = registry.champion()
    assert champion is not None
    files = registry.fetch(champion, tmp_path / "unused")
    new = promote(registry, make_draft(tmp_path / "new", b"new"), champion)
    assert (model_digest(draft), True) == (champion.digest, files.is_relative_to(moved.root))
    assert registry.fetch(new, tmp_path / "unused").is_relative_to(moved.root)
    assert not store.root.exists()
    assert [] == _naming(moved.root, store.root)


def test_what_other_programs_logged_moves_too(store: Store, tmp_path: Path) -> None:
    """Understudy logs no traces and no files as datasets, but the database inside the store may have some."""
    _promote(store, tmp_path)
    moved = Store(tmp_path / "moved")
    old, new = ((root / "mlflow" / "artifacts" / "1").as_uri() for root in (store.root, moved.root))
    with _database(store.root) as database:
        database.execute("INSERT INTO trace_tags VALUES ('mlflow.artifactLocation', ?, 'trace')", (old,))
        row = ("uuid", 1, "data", "digest", "local", json.dumps({"uri": old}), None, None)
        database.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    shutil.move(store.root, moved.root)
    assert _registry(moved.root).champion() is not None
    with _database(moved.root) as database:
        trace = database.execute("SELECT value FROM trace_tags WHERE request_id = 'trace'").fetchone()
        dataset = database.execute("SELECT dataset_source FROM datasets WHERE dataset_uuid = 'uuid'").fetchone()
    assert ((new,), (json.dumps({"uri": new}),)) == (trace, dataset)


def test_another_name_of_the_same_store_changes_nothing(store: Store, tmp_path: Path) -> None:
    """A store that is opened through a link keeps the locations that it has."""
    _promote(store, tmp_path)
    before = _naming(store.root, store.root)
    (tmp_path / "link").symlink_to(store.root)
    assert _registry(tmp_path / "link").champion() is not None
    assert before == _naming(store.root, store.root) != []


def test_a_neighbour_with_a_longer_name_is_left_alone(store: Store, tmp_path: Path) -> None:
    """Only paths inside the earlier store change: `store-2` does not lie in `store`."""
    _promote(store, tmp_path)
    beside = f"{store.root}-2/artifacts"
    with _database(store.root) as database:
        database.execute("UPDATE experiments SET artifact_location = ? WHERE name = 'Default'", (beside,))
    moved = _moved(store, tmp_path / "moved")
    assert _registry(moved.root).champion() is not None
    with _database(moved.root) as database:
        found = database.execute("SELECT artifact_location FROM experiments WHERE name = 'Default'").fetchone()
    assert (beside,) == found


def test_a_schema_that_was_not_tried_is_refused(store: Store, tmp_path: Path) -> None:
    """One line with the ways out, and no change; where it was made, such a store works."""
    _promote(store, tmp_path)
    with _database(store.root) as database:
        (tried,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
        database.execute("UPDATE alembic_version SET version_num = 'later'")
    moved = _moved(store, tmp_path / "moved")
    before = _naming(moved.root, store.root)
    with pytest.raises(UnderstudyError) as refused:
        _registry(moved.root).champion()
    assert tried in TRIED
    assert str(refused.value) == (
        f"{moved.root}/mlflow/mlflow.db: the store was copied or moved from {store.root}, and that was not tried with schema "
        f"later of MLflow (tried: MLflow 3.10 to 3.17); move it back, or make {store.root} a link to it, or delete "
        f"{moved.root}/mlflow to start with no champion"
    )
    assert before == _naming(moved.root, store.root) != []
    store.root.symlink_to(moved.root)  # one of the ways out; the schema's name is put back for MLflow's own check
    with _database(store.root) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (tried,))
    assert _registry(store.root).champion() is not None


def test_a_database_outside_the_store_is_left_alone(store: Store, tmp_path: Path) -> None:
    """A database that tracking.uri names is the user's: its locations stay, wherever it lies and whichever store uses it."""
    _promote(store, tmp_path)
    shutil.move(store.root / "mlflow", tmp_path / "shared")
    before = _locations(tmp_path / "shared" / "mlflow.db")
    for used_by in (store, Store(tmp_path / "another")):
        location = tracking_location(config_of(tracking={"uri": f"sqlite:///{tmp_path}/shared/mlflow.db"}), used_by)
        mlflow_client._clients.clear()
        experiment_id(client_for(location), location)
    assert before == _locations(tmp_path / "shared" / "mlflow.db") != []


def _promote(store: Store, tmp_path: Path) -> Path:
    draft = make_draft(tmp_path / "draft")
    promote(_registry(store.root), draft)
    return draft


def _registry(root: Path) -> Registry:
    """As a new process would open it."""
    mlflow_client._clients.clear()
    config = config_of()
    return Registry(registered_name(config), tracking_location(config, Store(root)))


def _moved(store: Store, to: Path) -> Store:
    shutil.move(store.root, to)
    return Store(to)


def _files(root: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@contextlib.contextmanager
def _database(root: Path):  # type: ignore[no-untyped-def]
    with contextlib.closing(sqlite3.connect(root / "mlflow" / "mlflow.db")) as connection, connection:
        yield connection


def _runs(root: Path) -> list[str]:
    with _database(root) as database:
        query = "SELECT DISTINCT value FROM tags WHERE key = 'understudy.run'"
        return [value for (value,) in database.execute(query)]


def _locations(database: Path) -> list[tuple[str]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return list(connection.execute("SELECT artifact_uri FROM runs UNION SELECT source FROM model_versions"))


def _naming(root: Path, place: Path) -> list[str]:
    """Every column of the database in which a value names `place`, as a path or in a URI; and every such run record."""
    found = [str(path) for path in root.glob("runs/*/run.json") if f'"{place}/' in path.read_text()]
    with _database(root) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, *_ in list(database.execute(f'PRAGMA table_info("{table}")')):
                for spelt in (str(place), quote(str(place))):
                    query = f'SELECT count(*) FROM "{table}" WHERE instr("{column}", ? || \'/\') OR "{column}" = ?'
                    if database.execute(query, (spelt, spelt)).fetchone()[0]:
                        found.append(f"{table}.{column}")
    return sorted(set(found))
