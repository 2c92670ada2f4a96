"""The store, the registry and the model hub. Writes nothing that stays, and shows no secret."""

import os
import shutil
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.planning.doctor.check import GIB, Check, Mark, first_line, nearest
from pipeline.registry import sqlite_file

_PROBE_SECONDS = 1.0
_DISK_NEEDED_GIB, _DISK_WANTED_GIB = 0.5, 5.0


def storage(store: Path) -> list[Check]:
    """Free disk and the right to write, of the store or of the directory it would be made in."""
    place = nearest(store)
    where = f"{store}" if place == store.absolute() else f"{store} (will be created)"
    try:
        with tempfile.TemporaryFile(dir=place):
            writable = Check("store", "ok", f"{where} is writable")
    except OSError as error:
        writable = Check("store", "missing", f"{where}: {error.strerror} at {place}", "choose another one with --store")
    free = shutil.disk_usage(place).free / GIB
    disk = Check("disk", "ok", f"{free:.1f} GiB free at {place}")
    if free < _DISK_WANTED_GIB:
        mark: Mark = "missing" if free < _DISK_NEEDED_GIB else "note"
        disk = Check("disk", mark, disk.found, "free some space, or choose another --store")
    return [disk, writable]


def credentials() -> list[Check]:
    """Addresses of MLflow that hold credentials: every command that needs MLflow refuses them."""
    from pipeline.registry.mlflow_client import addresses_with_credentials

    return [Check(name, "missing", "refused", mistake) for name, mistake in addresses_with_credentials().items()]


def registry(uri: str) -> Check:
    """Whether the registry answers. What is shown never holds the user or password of the URI."""
    from pipeline.registry.mlflow_client import missing_driver

    if uri.startswith(sqlite_file.PREFIX):
        return _database(sqlite_file.path_of(uri))
    parts = urlsplit(uri)
    if wrong := missing_driver(uri):
        scheme = parts.scheme.partition("+")[0]
        return Check("registry", "missing", f"{scheme}: {wrong.partition('; ')[0]}", wrong.partition("; ")[2])
    if parts.scheme not in ("http", "https"):
        return Check("registry", "note", f"{parts.scheme or 'a path'}: not contacted; from MLFLOW_TRACKING_URI")
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    remedy = "start the server, or correct MLFLOW_TRACKING_URI; until then no draft is compared or promoted"
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return Check("registry", "ok", f"{shown} accepts connections")
    except (OSError, ValueError) as error:  # ValueError: a port that is not a number
        return Check("registry", "missing", f"{shown} does not answer: {first_line(error)}", remedy)


def _database(path: Path) -> Check:
    made = os.path.isfile(path)
    if made:
        usable = os.access(path, os.R_OK | os.W_OK)
    else:
        place = nearest(path.parent)
        usable = not os.path.exists(path) and place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    if not usable:
        return Check(
            "registry",
            "missing",
            f"SQLite at {path}: cannot be opened or created for writing",
            "correct MLFLOW_TRACKING_URI, or choose another --store",
        )
    return Check("registry", "ok", f"SQLite at {path}" + ("" if made else " (will be created)"))


def hub() -> Check:
    """The settings of the model hub. The hub is not contacted, and the token is never shown."""
    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Check("hub", "note", f"{token}; HF_HUB_OFFLINE is set: only cached models can be used")
    return Check("hub", "note", f"{token}; HF_HUB_OFFLINE is not set; not contacted")
