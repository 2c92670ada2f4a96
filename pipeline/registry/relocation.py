"""Brings the MLflow database of a copied or moved store up to date.

MLflow keeps local artifact locations as absolute paths: it completes a relative one with the current directory when it is
created, and again when it is read. So the locations are changed when the store is opened in another directory than the one they
name. The location of our experiments is the directory that they are of: it is changed in the same transaction as the others.
Used for the database inside a store only, never for a server or a database elsewhere. Standard library only.
"""

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from urllib.parse import unquote

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

# Alembic's revision of a database, by the MLflow versions that create it. Relocation was tried with each of them.
TRIED = {
    "1b5f0d9ad7c1": "3.10",
    "c3d6457b6d8a": "3.11",
    "7d34483879f0": "3.12",
    "da6fb0208061": "3.13",
    "b7e4c1a90f23": "3.14",
    "6f8d9c3b2a1e": "3.15",
    "b7e2c1a4d9f3": "3.16",
    "dc11669786a5": "3.17",
}
FOLDER = "mlflow"  # of a store: database and artifacts
_ARTIFACTS = f"/{FOLDER}/artifacts"
_COLUMNS = (
    ("experiments", "artifact_location", ""),
    ("runs", "artifact_uri", ""),
    ("logged_models", "artifact_location", ""),
    ("model_versions", "source", ""),
    ("model_versions", "storage_location", ""),
    ("datasets", "dataset_source", ""),
    ("tags", "value", "WHERE key = 'understudy.store'"),
    ("trace_tags", "value", "WHERE key = 'mlflow.artifactLocation'"),
)


def relocate(database: Path, store: Path) -> None:
    """Let the locations in `database`, which lies in `store`, name this store. Does nothing if they do. Hold the store's lock.

    Raises UnderstudyError if the store was copied or moved and the database has a schema that was not tried.
    """
    if not database.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as connection:
            if not _earlier_roots(connection, store):
                return
            connection.execute("BEGIN IMMEDIATE")
            roots = _earlier_roots(connection, store)
            _require_tried(connection, database, roots)
            for table, column, where in _COLUMNS:
                _move_column(connection, table, column, where, roots, store)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RegistryUnavailable(f"MLflow at sqlite:///{database} failed ({error})") from error


def _earlier_roots(connection: sqlite3.Connection, store: Path) -> list[Path]:
    """The directories that this store had, by the locations of our experiments; longest first."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
        return []  # a new database
    paths = set()
    for (location,) in connection.execute("SELECT DISTINCT artifact_location FROM experiments"):
        if str(location).startswith("file:///") and location.endswith(_ARTIFACTS):
            paths.add(_path_of(location.removesuffix(_ARTIFACTS)))
    return sorted((root for root in paths if not _is_same(root, store)), key=lambda root: -len(str(root)))


def _is_same(root: Path, store: Path) -> bool:
    """Whether both are one directory, such as under the name of a link."""
    if root == store:
        return True
    with contextlib.suppress(OSError):
        return os.path.samefile(root, store)
    return False


def _require_tried(connection: sqlite3.Connection, database: Path, roots: list[Path]) -> None:
    version = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    if version not in TRIED:
        known = list(TRIED.values())
        raise UnderstudyError(
            f"{database}: the store was copied or moved from {roots[0]}, and that was not tried with schema {version} of MLflow "
            f"(tried: MLflow {known[0]} to {known[-1]}); move it back, or make {roots[0]} a link to it, or delete "
            f"{database.parent} to start with no champion"
        )


def _move_column(
    connection: sqlite3.Connection, table: str, column: str, where: str, roots: list[Path], store: Path
) -> None:
    rows = connection.execute(f'SELECT rowid, "{column}" FROM "{table}" {where}').fetchall()
    changed = [
        (new, row) for row, old in rows if isinstance(old, str) and (new := _moved(old, roots, store)) is not None
    ]
    connection.executemany(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', changed)


@reads_own_files("a value of MLflow's database")
def _moved(value: str, roots: list[Path], store: Path) -> str | None:
    """A path, a file URI or a dataset's source within one of `roots`, as it is in `store`; None for anything else."""
    if value.startswith("{"):
        try:
            source = parse_json(value, foreign=True)
        except ValueError:  # not ours
            return None
        inner = _moved(source["uri"], roots, store) if isinstance(source.get("uri"), str) else None
        return None if inner is None else json.dumps({**source, "uri": inner})
    is_uri = value.startswith("file:///")
    path = _path_of(value) if is_uri else Path(value)
    for root in roots:
        if path.is_relative_to(root):
            new = store / path.relative_to(root)
            return new.as_uri() if is_uri else str(new)
    return None


def _path_of(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://")))
