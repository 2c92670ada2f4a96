"""A migrated SQLite store, made once and copied (migrations take seconds), and what tests put into it."""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.models.files import model_digest
from pipeline.progress import Progress
from pipeline.registry import mlflow_client
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.packaging import Package
from pipeline.registry.registry import Registry
from pipeline.registry.sqlite_file import make
from pipeline.store.artifacts import Store
from pipeline.store.atomic import temporary_directory
from tests import shared_cache

# Its tables are those of MLflow's version, whatever else changes here.
_MIGRATED_BY = (
    *("pipeline/registry/sqlite_file.py", "pipeline/registry/mlflow_client.py"),
    "tests/integration/mlflow_fixtures.py",
)


def config_of(**overrides: object) -> Config:
    """A small valid config."""
    raw = {
        "name": "loop",
        "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
        "corpus": {"sources": [{"path": "reference"}]},
    }
    return parse_config({**raw, **overrides}, "test")


class Quiet(Progress):
    """Keeps what would have been printed."""

    def __init__(self) -> None:
        super().__init__(terminal=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def make_draft(directory: Path, weights: bytes = b"weights") -> Path:
    """Something that passes for a model directory."""
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return directory


def promote(
    registry: Registry,
    draft: Path,
    expected: RegisteredDraft | None = None,
    approval_days: int | None = None,
    **changes: Any,
) -> RegisteredDraft:
    """Promote a draft with figures and a card of no importance. `changes`: fields of the package."""
    fields: dict[str, Any] = {
        "model_dir": draft,
        "digest": model_digest(draft),
        "card": "# Card",
        "description": "Better",
        "tags": {"target": "reference"},
        "metrics": {"acceptance_rate": 0.7},
        "dataset": ("loop-corpus", "abc"),
        "run_id": "run-1",
    }
    return registry.promote(Package(**(fields | changes)), expected, approval_days=approval_days)


def migrated() -> Path:
    """A directory in whose folder `mlflow` is a new database. Migrations take a second of a core, so it is made once."""

    def make_in(root: Path) -> None:
        for name, value in mlflow_client._ENVIRONMENT.items():  # MLflow reads it when it is imported
            os.environ.setdefault(name, value)
        make(root / "mlflow" / "mlflow.db", root / "mlflow" / "artifacts")

    return shared_cache.entry("mlflow", make_in, _MIGRATED_BY)


def copy_migrated(path: Path, artifacts: Path) -> None:
    """What `sqlite_file.make` does, without migrations."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path) as aside:
        shutil.copy(migrated() / "mlflow" / "mlflow.db", aside / path.name)
        with contextlib.closing(sqlite3.connect(aside / path.name)) as connection, connection:
            default = f"{artifacts.as_uri()}/0"
            connection.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", (default,))
        (aside / path.name).rename(path)


@pytest.fixture(scope="session")
def mlflow_template() -> Path:
    return migrated()


@pytest.fixture
def store(mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with an empty, migrated database; the test runs in another, empty directory."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    root = tmp_path / "store"
    shutil.copytree(mlflow_template / "mlflow", root / "mlflow")
    yield Store(root)
    assert list(elsewhere.iterdir()) == []  # MLflow's defaults would write to the caller's directory
