"""MLflow's database in the store: at any path, and whole or not there at all."""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.registry import sqlite_file
from pipeline.registry.mlflow_client import client_for, store_database, tracking_location
from pipeline.registry.registry import registry_for
from pipeline.registry.tracking import Tracker
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord
from tests.integration.mlflow_fixtures import Quiet, config_of, make_draft, mlflow_template, promote, store

__all__ = ["mlflow_template", "store"]

_ODD = ["a?b", "a b#c", "100%", "a%3Fb%20c", "ü?x=1&y#z", "q'uo\"te"]
_OPEN = """
import sys
from pathlib import Path
from pipeline.registry.mlflow_client import client_for, tracking_location
from pipeline.store.artifacts import Store
from tests.integration.mlflow_fixtures import config_of
print("ready", flush=True)
client = client_for(tracking_location(config_of(), Store(Path(sys.argv[1]))))
print(len(client.search_experiments()), flush=True)
"""


@pytest.mark.parametrize("name", ["ü?x=1&y#z %3F", "100%"])
def test_a_store_at_any_path(store: Store, tmp_path: Path, name: str) -> None:
    """Database, runs and drafts are inside the store, and MLflow makes nothing beside it."""
    before = set(os.listdir(tmp_path))
    odd = Store(tmp_path / name / "store")
    shutil.copytree(store.root, odd.root)
    draft = make_draft(tmp_path / name / "draft")
    config = config_of()
    record = RunRecord(
        id="r", name="loop", created="2026-11-20T00:00:00Z", config=config.model_dump(mode="json"), outside={}
    )
    record.save(odd)
    assert Tracker(config, odd, Quiet()).sync(record)
    registry = registry_for(config, odd)
    promoted = promote(registry, draft, run_id="r")
    files = registry.fetch(promoted, tmp_path / "unused")

    assert before | {name} == set(os.listdir(tmp_path))
    assert {"draft", "store"} == set(os.listdir(tmp_path / name))
    assert files.is_relative_to(odd.root / "mlflow" / "artifacts")
    with contextlib.closing(sqlite3.connect(odd.root / "mlflow" / "mlflow.db")) as database:
        assert [(registry.name,)] == database.execute("SELECT name FROM registered_models").fetchall()
        assert [(1,)] == database.execute("SELECT count(*) FROM runs").fetchall()


@pytest.mark.parametrize("name", _ODD)
def test_a_uri_is_that_of_its_path(name: str) -> None:
    """Both ways, with options and without."""
    path = Path("/data") / name / "mlflow.db"
    assert path == sqlite_file.path_of(sqlite_file.uri_of(path))
    assert path == sqlite_file.path_of(f"{sqlite_file.uri_of(path)}?timeout=5")


def test_an_older_sqlalchemy_refuses_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no way to write one; it does not decode `%` either."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.0.49")
    assert "sqlite:////a%b/m.db" == sqlite_file.uri_of(Path("/a%b/m.db"))
    assert Path("/a%b/m.db") == sqlite_file.path_of("sqlite:////a%b/m.db")
    with pytest.raises(UsageError, match="choose another --store"):
        store_database(Store(Path("/a?b")))


def test_a_migration_that_is_cut_short_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is there once it is complete; before that there is none."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = Store(tmp_path / "store")

    def killed(engine: object) -> None:
        with contextlib.closing(sqlite3.connect(next(tmp_path.rglob("*.partial/mlflow.db")))) as database:
            database.execute("CREATE TABLE spans (id INTEGER)")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.store.db.utils._initialize_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            client_for(tracking_location(config_of(), root))
    assert [] == list((root.root / "mlflow").iterdir())


@pytest.mark.long
def test_killed_while_the_database_is_made(tmp_path: Path) -> None:
    """Eight times two processes open a new store, and the one that makes the database is killed, each time later: the other
    one, and the next one, find a whole database."""
    whole_seconds, interrupted = 0.0, 0
    for number in range(9):
        root = tmp_path / str(number)
        line = [sys.executable, "-c", _OPEN, str(root)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        pair = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
        database = root / "mlflow" / "mlflow.db"
        while not (found := list(root.glob("mlflow/.*.partial"))):
            time.sleep(0.01)
        began, maker = time.monotonic(), int(found[0].name.split("-")[1])
        if number == 0:  # nobody is killed
            while not database.exists():
                time.sleep(0.01)
            whole_seconds = time.monotonic() - began
        else:
            time.sleep(whole_seconds * (number - 0.5) / 8)
            os.kill(maker, signal.SIGKILL)
            interrupted += not database.exists()
        ends = [process.communicate(timeout=300)[0].splitlines()[1:] for process in pair]
        codes = [process.returncode for process in pair]
        again = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert all((end, code) == (["1"], 0) for end, code in zip(ends, codes, strict=True) if code != -9), number
        assert codes.count(-9) <= (number > 0), number  # a late kill meets a process that has ended
        assert 0 == again.returncode, (number, again.stderr)
        assert ["mlflow.db"] == os.listdir(database.parent), number
    assert interrupted >= 3, "the kills came after the creation"
