"""Registers a draft: an MLflow logged model (files, card, figures) and a version that points to it.

Sets no aliases: a version registered here becomes champion in `pipeline.registry.registry`.
"""

import contextlib
import json
import math
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.errors import UnderstudyError
from pipeline.models.files import model_digest
from pipeline.registry.mlflow_client import (
    EXISTS,
    MISSING,
    Location,
    answering,
    dataset_input,
    error_code,
    experiment_id,
    log_batch,
    metrics,
)
from pipeline.registry.mlflow_runs import RUN_TAG, find_or_create_run
from pipeline.store.atomic import temporary_directory

CARD = "README.md"  # where people and hubs look for a model's card


@dataclass(frozen=True, kw_only=True)
class Package:
    """A draft to register. `dataset` is (name, digest) of the data that `metrics` were measured on."""

    model_dir: Path
    digest: str
    card: str
    description: str  # of the version, in Markdown
    tags: dict[str, str]
    metrics: dict[str, float]
    dataset: tuple[str, str]
    run_id: str

    def check(self) -> None:
        """UnderstudyError if a figure is not finite or the files are not those of `digest`."""
        bad = [name for name, value in self.metrics.items() if not math.isfinite(value)]
        if bad:
            raise UnderstudyError(
                f"{', '.join(sorted(bad))}: not a finite number, so the draft is not registered; run again"
            )
        digest = model_digest(self.model_dir)
        if digest != self.digest:
            raise UnderstudyError(f"{self.model_dir}: digest {digest}, but {self.digest} was examined; run again")


def register(client: Any, location: Location, name: str, package: Package) -> str:
    """Upload the files, log the figures, create the version with its tags; returns the version."""
    package.check()
    experiment = experiment_id(client, location)
    _ensure_registered_model(client, name, package)
    tags = {RUN_TAG: package.run_id, "understudy.digest": package.digest}
    run_id, created = find_or_create_run(client, experiment, package.run_id)
    model = client.create_logged_model(experiment, name=name, source_run_id=run_id, tags=tags, model_type="draft")
    try:
        client.log_model_artifacts(model.model_id, str(package.model_dir))
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, CARD).write_text(package.card, encoding="utf-8")
            client.log_model_artifacts(model.model_id, temporary)
    except BaseException:
        client.finalize_logged_model(model.model_id, "FAILED")
        raise
    model = client.finalize_logged_model(model.model_id, "READY")
    _log_figures(client, run_id, model.model_id, package)
    # A database resolves models:/<id> through MLflow's global client, which may look elsewhere; a server does not.
    source = f"models:/{model.model_id}" if location.is_server else model.artifact_location
    version = client.create_model_version(
        name,
        source=source,
        run_id=run_id,
        model_id=model.model_id,
        await_creation_for=0,
        tags={**package.tags, **tags, "understudy.model_id": model.model_id},
        description=package.description,
    )
    if not location.is_server:  # a server links the model's page to the version by itself
        link = json.dumps([{"name": name, "version": str(version.version)}])
        client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": link})
    if created:  # otherwise tracking ends it
        client.set_terminated(run_id, "FINISHED")
    return str(version.version)


def _ensure_registered_model(client: Any, name: str, package: Package) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error_code(error) != MISSING:
            raise
        try:
            client.create_registered_model(
                name,
                tags={"target": package.tags.get("target", "")},
                description="Draft models for speculative decoding, kept by Understudy",
            )
        except MlflowException as lost:
            if error_code(lost) != EXISTS:  # created by another process in the meantime
                raise


def _log_figures(client: Any, run_id: str, model_id: str, package: Package) -> None:
    from mlflow.entities import LoggedModelOutput

    name, digest = package.dataset
    client.log_inputs(run_id, datasets=[dataset_input(name, digest, name, "evaluation")])
    client.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])
    log_batch(
        client,
        run_id,
        metrics(
            package.metrics,
            int(time.time() * 1000),
            model_id=model_id,
            run_id=run_id,
            dataset_name=name,
            dataset_digest=digest[:36],
        ),
    )


def files_of(location: Location, where: str, digest: str, what: str, into: Path) -> Path:
    """The directory with the files stored at `where`: `where` itself if it is on this machine, else `into`.

    Raises UnderstudyError naming `what` if the files are missing or do not have `digest`.
    """
    if urlsplit(where).scheme in ("", "file"):
        path = Path(unquote(urlsplit(where).path) if where.startswith("file:") else where)
        _require_intact(path, digest, what)
        return path
    if not _is_intact(into, digest):
        _download(location, where, digest, what, into)
    return into


def _download(location: Location, where: str, digest: str, what: str, into: Path) -> None:
    """Download into a directory beside `into` and rename it when it is complete: a killed download leaves no draft."""
    import mlflow.artifacts

    into.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(into) as temporary:
        with answering(location):
            mlflow.artifacts.download_artifacts(artifact_uri=where, dst_path=str(temporary), tracking_uri=location.uri)
        weights = next(iter(sorted(temporary.rglob("*.safetensors"))), None)
        files = weights.parent if weights is not None else temporary
        _require_intact(files, digest, what)
        if into.exists() and not _is_intact(into, digest):  # another process may have downloaded it in the meantime
            shutil.rmtree(into)
        if not into.exists():
            with contextlib.suppress(OSError):
                files.rename(into)
    _require_intact(into, digest, what)


def _require_intact(directory: Path, digest: str, what: str) -> None:
    if not _is_intact(directory, digest):
        raise UnderstudyError(
            f"{directory}: not the files that were registered as {what} (digest {digest}); restore them or roll back"
        )


def _is_intact(directory: Path, digest: str) -> bool:
    return any(directory.glob("*.safetensors")) and model_digest(directory) == digest
