"""All checks of `understudy doctor`, in the order they are shown."""

import os
from pathlib import Path

from pipeline.planning.doctor.check import Check
from pipeline.planning.doctor.compiled import compiled
from pipeline.planning.doctor.gpus import gpus
from pipeline.planning.doctor.libraries import libraries
from pipeline.planning.doctor.machine import machine
from pipeline.planning.doctor.services import credentials, hub, registry, storage
from pipeline.registry.sqlite_file import uri_of


def checks(store: Path) -> list[Check]:
    """What this machine has and lacks for runs in `store`, which need not exist. Changes nothing."""
    tracking = os.environ.get("MLFLOW_TRACKING_URI") or uri_of(store.absolute() / "mlflow" / "mlflow.db")
    return [
        *machine(),
        *gpus(),
        *libraries(),
        *compiled(),
        *storage(store),
        *(credentials() or [registry(tracking)]),
        hub(),
    ]
