"""Uploads runs to MLflow: one MLflow run for each run, with the decision, figures, settings and small files.

The record in the store is authoritative; MLflow holds a copy, uploaded during the run or later by `understudy store sync`. If
MLflow does not answer, the run continues with a warning. `record.mlflow` lists what has been uploaded, so that a repeated upload
sends only what is new. Jobs are folders of artifacts, not runs of their own: a list of runs shows one line for each run.
"""

import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.acceptance.schema import FILE as ACCEPTANCE
from pipeline.acceptance.schema import read_profile
from pipeline.config.root import Config
from pipeline.errors import RegistryDown, UnderstudyError
from pipeline.escaping.markup import yaml_text
from pipeline.judgement.decision_file import find_decision, read_training
from pipeline.judgement.headline import baseline_name
from pipeline.progress import Progress
from pipeline.registry.mlflow_client import (
    MISSING,
    answering,
    client_for,
    dataset_input,
    error_code,
    experiment_id,
    log_batch,
    step_metrics,
    store_database,
    tracking_location,
)
from pipeline.registry.mlflow_runs import find_or_create_run
from pipeline.registry.run_content import (
    Point,
    decision_points,
    note,
    parameters,
    run_name,
    training_points,
    verdict,
)
from pipeline.registry.shared_view import publish_view, view_path
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import content_key, file_sha256
from pipeline.store.own_files import reads_own_files
from pipeline.store.runs import RunRecord, Uploaded, run_directory
from pipeline.store.times import seconds_of

_STATUS = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "refused": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
_SMALL_BYTES = 2_000_000
COMPACT = "acceptance.figures.json"  # the figures of an acceptance.json that is too large, without its rows
PAGE = "review.html"  # in the directory of the run
# Files of an artifact that reviewers want, and the folder they are shown in.
_FILES = {
    "gate": ("", ("decision.json", "latency.png", "draft_lengths.png")),
    "promote": ("", ("card.md", "promotion.json")),
    "evaluate": ("examinations", (ACCEPTANCE,)),
    "distill": ("training", ("training.json", "learning_curve.json")),
}


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= _SMALL_BYTES


class Tracker:
    """Uploads run records. After a failure it makes no further attempt in this process."""

    def __init__(self, config: Config, store: Store, progress: Progress) -> None:
        self.store, self.progress = store, progress
        self.location = tracking_location(config, store)
        self._down = False

    def sync(self, record: RunRecord) -> bool:
        """Upload what `record` has and MLflow lacks; True if that worked. Raises nothing if MLflow does not answer."""
        if self._down:
            return False
        try:
            client = client_for(self.location)
            with answering(self.location):
                self._upload_or_start_over(client, record)
        except UnderstudyError as error:
            self._give_up(record, error)
        return not self._down

    @property
    def _recorded_uri(self) -> str | None:
        """None for the database inside the store: a record must hold no path that changes when the store is moved."""
        return None if self.location.is_own else self.location.uri

    def _give_up(self, record: RunRecord, error: UnderstudyError) -> None:
        self._down = True
        down = isinstance(error, RegistryDown)
        self.progress.warn(
            f"tracking at {self.location.uri} {'does not answer' if down else f'failed: {error}'}; figures are in "
            f"{run_directory(self.store, record.id)}; `understudy store sync` uploads them later"
        )

    def _upload_or_start_over(self, client: Any, record: RunRecord) -> None:
        """If the runs in MLflow are gone (deleted, or another database under the same URI), they are created anew, once."""
        if record.mlflow is not None and record.mlflow.uri != self._recorded_uri:
            record.mlflow = None
        known = record.mlflow is not None
        try:
            self._upload(client, record)
        except Exception as error:
            if not known or error_code(error) not in (MISSING, "INVALID_STATE", "INVALID_PARAMETER_VALUE"):
                raise
            record.mlflow = None
            self._upload(client, record)

    def _upload(self, client: Any, record: RunRecord) -> None:
        state = record.mlflow or self._open(client, record)
        points: list[Point] = []
        for job_id, entry in record.jobs.items():
            if not state.synced.get(job_id, "").endswith(f" {entry.key}"):
                points += self._upload_job(client, record, state.run_id, job_id)
            state.synced[job_id] = f"{entry.state} {entry.key}"  # also of one built by this run and reused since
        self._upload_page(client, record, state)
        self._upload_summary(client, record, state, points)

    def _open(self, client: Any, record: RunRecord) -> Uploaded:
        """Create the MLflow run with its settings, or find the one that a killed process or the registry created."""
        experiment = experiment_id(client, self.location)
        publish_view(client, experiment)
        run_id, _ = find_or_create_run(client, experiment, record.id, _milliseconds(record.created))
        record.mlflow = Uploaded(uri=self._recorded_uri, experiment_id=experiment, run_id=run_id)
        log_batch(client, run_id, params=parameters(record))
        client.log_text(run_id, yaml_text(record.config), "config.yaml")
        record.save(self.store)
        return record.mlflow

    @reads_own_files("the card that promote wrote")
    def _upload_job(self, client: Any, record: RunRecord, run_id: str, job_id: str) -> list[Point]:
        """Upload the job's files; returns its figures."""
        entry, directory = record.jobs[job_id], self._directory(record, job_id)
        if directory is None:
            return []
        folder, names = _FILES.get(entry.stage, ("", ()))
        if folder and entry.part:
            folder = f"{folder}/{entry.part}"
        for place, name in (*((folder, name) for name in names), (f"manifests/{job_id}", "manifest.json")):
            path = directory / name
            if name == "card.md" and path.is_file():
                client.log_text(run_id, _without_header(path.read_text(encoding="utf-8")), name)
            elif path.is_file() and _is_small(path):
                client.log_artifact(run_id, str(path), place or None)
        if entry.stage == "evaluate" and (directory / ACCEPTANCE).is_file() and not _is_small(directory / ACCEPTANCE):
            figures = asdict(read_profile(directory))
            client.log_dict(run_id, figures, f"{folder}/{COMPACT}")
        for path in self._too_large(record, job_id):
            self.progress.line(
                f"{job_id}: {path} is not uploaded to MLflow: {path.stat().st_size / 1e6:,.1f} MB, and at most "
                f"{_SMALL_BYTES / 1e6:g} MB a file are"
            )
        if entry.stage == "distill" and (directory / "training.json").is_file():
            return training_points(read_training(directory / "training.json"))
        if entry.stage == "gate" and (decision := find_decision(directory)):
            return decision_points(decision)
        return []

    def _too_large(self, record: RunRecord, job_id: str) -> list[Path]:
        """The files of a job that are too large to be uploaded."""
        entry = record.jobs[job_id]
        own, stored = run_directory(self.store, record.id) / entry.stage, self.store.directory(entry.stage, entry.key)
        directory = stored if entry.figures is None else own
        paths = [directory / name for name in (*_FILES.get(entry.stage, ("", ()))[1], "manifest.json")]
        return [path for path in paths if path.is_file() and not _is_small(path)]

    def _upload_page(self, client: Any, record: RunRecord, state: Uploaded) -> None:
        """The review page, as the run left it. It is written again when the draft is promoted."""
        path = run_directory(self.store, record.id) / PAGE
        if path.is_file() and state.page != (digest := file_sha256(path)):
            client.log_artifact(state.run_id, str(path), None)
            state.page = digest

    def _directory(self, record: RunRecord, job_id: str) -> Path | None:
        """The job's artifact, or the run's own folder for a job without one; None for a job that is not there."""
        entry = record.jobs.get(job_id)
        if entry is None:
            return None
        if entry.figures is not None:
            return run_directory(self.store, record.id) / entry.stage
        artifact: Artifact | None = None
        try:
            artifact = self.store.find(entry.stage, entry.key)
        except UnderstudyError as error:
            self.progress.warn(f"{job_id} is uploaded without figures: {error}")
            return None
        return Path(artifact.path) if artifact is not None else None

    def _upload_summary(self, client: Any, record: RunRecord, state: Uploaded, points: list[Point]) -> None:
        """Name, tags, description, datasets and status of the MLflow run."""
        directory = self._directory(record, "gate")
        decision = find_decision(directory) if directory is not None else None
        page = f"#/experiments/{state.experiment_id}/runs/{state.run_id}/artifacts/{PAGE}"
        tags = {
            "verdict": verdict(record),
            **({} if decision is None else {"compared_with": baseline_name(decision)}),
            "mlflow.runName": run_name(record),
            "mlflow.note.content": note(record, decision, page),
            "understudy.name": record.name,
            "understudy.state": record.state,
            "understudy.seed": str(record.config["seed"]),
        }
        if left_out := [path for job_id in record.jobs for path in self._too_large(record, job_id)]:
            tags["understudy.not_uploaded"] = "; ".join(str(self.store.relative(path)) for path in left_out)
        stamp = content_key([tags, sorted(state.synced.items()), state.page])
        if state.summary == stamp and not points:
            return
        self._log_datasets(client, record, state)
        log_batch(client, state.run_id, step_metrics(points, int(time.time() * 1000)), tags=tags)
        status = _STATUS.get(record.state, "RUNNING")
        if status == "RUNNING":
            client.update_run(state.run_id, status)
        else:
            client.set_terminated(state.run_id, status, _milliseconds(record.ended) if record.ended else None)
        state.summary = stamp
        record.save(self.store)

    def _log_datasets(self, client: Any, record: RunRecord, state: Uploaded) -> None:
        for job_id, context in (("corpus", "training"), ("generate", "evaluation")):
            job = record.jobs.get(job_id)
            if job is not None and state.datasets.get(job_id) != job.key:
                name, source = f"{record.name}-{job_id}", str(self.store.directory(job.stage, job.key))
                client.log_inputs(state.run_id, [dataset_input(name, job.key, source, context)])
                state.datasets[job_id] = job.key


def ui_link(record: RunRecord, store: Store) -> str | None:
    """Where MLflow shows the runs: an address, or the command that serves it, to be pasted as it is; None if the run was never
    uploaded."""
    state = record.mlflow
    if state is None:
        return None
    uri, path = state.uri or store_database(store), view_path(state.experiment_id)
    if uri.startswith(("http://", "https://")):
        return f"{uri}{path}"
    command = [_mlflow_command(), "ui", "--backend-store-uri", uri]
    return f"{shlex.join(command)}  # then open http://127.0.0.1:5000{path}"


def _mlflow_command() -> str:
    """`mlflow` if the shell finds the one of this environment by that name; else its path."""
    own = Path(sys.executable).with_name("mlflow")
    program = shutil.which("mlflow")
    return "mlflow" if program and Path(program) == own else str(own)


def _without_header(card: str) -> str:
    """A card without its YAML header, which is for model hubs."""
    parts = card.split("---\n", 2)
    return parts[2].lstrip() if len(parts) == 3 and not parts[0] else card


def _milliseconds(at: str) -> int:
    """A time of a record as MLflow has it."""
    return 1000 * seconds_of(at)
