"""Uploads runs to MLflow: one parent run per pipeline run, one child run per job, figures, settings and the decision.

The record in the store is authoritative; MLflow holds a copy, uploaded during the run or later by `understudy store sync`. If
MLflow does not answer, the run continues with a warning. Does not depend on stages: figures come from manifests.
`record.mlflow` lists what has been uploaded, so that a repeated upload sends only what is new.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.registry.mlflow_client import (
    MISSING,
    answering,
    client_for,
    dataset_input,
    error_code,
    experiment_id,
    log_batch,
    metrics,
    store_database,
    tracking_location,
)
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import content_key
from pipeline.store.runs import RunRecord, run_directory

_STATUS = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "refused": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
_SMALL_FILES = (
    *("manifest.json", "decision.json", "acceptance.json", "promotion.json", "card.md"),
    *("latency.png", "draft_lengths.png"),
)
_SMALL_BYTES = 2_000_000
_PARENT, _RUN, _JOB = "mlflow.parentRunId", "understudy.run", "understudy.job"


@dataclass(frozen=True)
class _Found:
    """A job's figures, and the directory of its files."""

    figures: Mapping[str, float]
    directory: Path | None
    manifest: Mapping[str, Any]


class Tracker:
    """Uploads run records. After a failure it makes no further attempt in this process."""

    def __init__(self, config: Config, store: Store, progress: Progress) -> None:
        self.store, self.progress = store, progress
        self.location = tracking_location(config, store)
        self._down = False
        self._adopted: set[str] = set()

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
        down = "does not answer" in str(error)
        self.progress.warn(
            f"tracking at {self.location.uri} {'does not answer' if down else f'failed: {error}'}; figures are in "
            f"{run_directory(self.store, record.id)}; `understudy store sync` uploads them later"
        )

    def _upload_or_start_over(self, client: Any, record: RunRecord) -> None:
        """If the runs in MLflow are gone (deleted, or another database under the same URI), they are created anew, once."""
        if record.mlflow and record.mlflow["uri"] != self._recorded_uri:
            record.mlflow = {}
        known = bool(record.mlflow)
        try:
            self._upload(client, record)
        except Exception as error:
            if not known or error_code(error) not in (MISSING, "INVALID_STATE", "INVALID_PARAMETER_VALUE"):
                raise
            record.mlflow = {}
            self._upload(client, record)

    def _upload(self, client: Any, record: RunRecord) -> None:
        state = record.mlflow
        if not state.get("run_id"):
            self._open_parent(client, record)
            state = record.mlflow
        self._adopt_children(client, record)
        new = {job_id: entry for job_id, entry in record.jobs.items() if state["synced"].get(job_id) != _stamp(entry)}
        figures: dict[str, float] = {}
        found: dict[str, _Found] = {job_id: self._find(record, job_id, entry) for job_id, entry in new.items()}
        for job_id, entry in new.items():
            self._upload_job(client, record, job_id, entry, found[job_id])
            figures |= {f"{job_id}/{name}": value for name, value in found[job_id].figures.items()}
        self._upload_parent(client, record, figures, found)

    def _open_parent(self, client: Any, record: RunRecord) -> None:
        """Create the parent run with the settings, or find by its tag the one that a killed process created."""
        experiment = experiment_id(client, self.location)
        filter_string = f"tags.`{_RUN}` = '{record.id}' AND tags.`understudy.kind` = 'run'"
        earlier = client.search_runs([experiment], filter_string, max_results=1)
        if earlier:
            run_id = earlier[0].info.run_id
        else:
            tags = {_RUN: record.id, "understudy.kind": "run", "understudy.store": str(self.store.root)}
            run_id = client.create_run(experiment, run_name=record.id, tags=tags).info.run_id
        record.mlflow = {
            "uri": self._recorded_uri,
            "experiment_id": experiment,
            "run_id": run_id,
            "children": {},
            "synced": {},
            "parent": "",
        }
        log_batch(client, run_id, params=_flatten(record.config))
        record.save(self.store)

    def _adopt_children(self, client: Any, record: RunRecord) -> None:
        """Find child runs that a killed process created but did not record; once per process and run."""
        parent = record.mlflow["run_id"]
        if parent in self._adopted:
            return
        of_parent = f"tags.`{_PARENT}` = '{parent}'"
        for child in client.search_runs([record.mlflow["experiment_id"]], of_parent, max_results=500):
            if _JOB in child.data.tags:
                record.mlflow["children"].setdefault(child.data.tags[_JOB], child.info.run_id)
        self._adopted.add(parent)

    def _find(self, record: RunRecord, job_id: str, entry: Mapping[str, Any]) -> _Found:
        """The job's figures from its artifact, or from the record for a job without an artifact."""
        if "figures" in entry:
            return _Found(entry["figures"], run_directory(self.store, record.id) / entry["stage"], {})
        artifact: Artifact | None = None
        try:
            artifact = self.store.find(entry["stage"], entry["key"])
        except UnderstudyError as error:
            self.progress.warn(f"{job_id} is uploaded without figures: {error}")
        if artifact is None:
            return _Found({}, None, {})
        return _Found(artifact.figures, artifact.path, artifact.manifest)

    def _upload_job(self, client: Any, record: RunRecord, job_id: str, entry: Mapping[str, Any], found: _Found) -> None:
        state = record.mlflow
        now = int(time.time() * 1000)
        tags = {
            _PARENT: state["run_id"],
            _RUN: record.id,
            _JOB: job_id,
            "understudy.stage": entry["stage"],
            "understudy.key": entry["key"],
            "understudy.state": entry["state"],
            "understudy.git": _git(found),
            "understudy.seed": str(record.config["seed"]),
        }
        if state["synced"].get(job_id, "").endswith(f" {entry['key']}"):  # built by this run and reused since
            log_batch(client, state["children"][job_id], tags=tags)
            state["synced"][job_id] = _stamp(entry)
            return
        run_id = state["children"].get(job_id) or entry.get("notes", {}).get("mlflow_run")
        fresh = not run_id
        if fresh:
            begun = now - int(1000 * entry["seconds"])
            run_id = client.create_run(state["experiment_id"], begun, tags, run_name=job_id).info.run_id
        state["children"][job_id] = run_id
        log_batch(client, run_id, metrics(found.figures, now), tags={} if fresh else tags)
        for name in _SMALL_FILES if found.directory is not None else ():
            path = found.directory / name if found.directory is not None else Path()
            if path.is_file() and path.stat().st_size <= _SMALL_BYTES:
                client.log_artifact(run_id, str(path))
        client.set_terminated(run_id, "FINISHED", now)
        state["synced"][job_id] = _stamp(entry)

    def _upload_parent(
        self, client: Any, record: RunRecord, figures: Mapping[str, float], found: Mapping[str, _Found]
    ) -> None:
        state = record.mlflow
        decision = record.decision or {}
        git = next((_git(item) for item in found.values() if item.manifest), "")
        tags = {
            "understudy.state": record.state,
            "understudy.name": record.name,
            "mlflow.note.content": _note(record),
            "understudy.seed": str(record.config["seed"]),
        }
        tags |= {"understudy.git": git} if git else {}
        tags |= {"understudy.decision": str(decision["verdict"])} if "verdict" in decision else {}
        corpus = record.jobs.get("corpus")
        stamp = content_key([{**tags, "understudy.git": ""}, sorted(state["synced"].items())])
        if state["parent"] == stamp and not figures:
            return
        if corpus is not None and state.get("dataset") != corpus["key"]:
            source = str(self.store.directory("corpus", corpus["key"]))
            dataset = dataset_input(f"{record.name}-corpus", corpus["key"], source, "workload")
            client.log_inputs(state["run_id"], [dataset])
            state["dataset"] = corpus["key"]
        log_batch(client, state["run_id"], metrics(figures, int(time.time() * 1000)), tags=tags)
        status = _STATUS.get(record.state, "RUNNING")
        if status == "RUNNING":
            client.update_run(state["run_id"], status)
        else:
            client.set_terminated(state["run_id"], status)
        state["parent"] = stamp
        record.save(self.store)


def ui_link(record: RunRecord, store: Store) -> str | None:
    """The address of the run in MLflow's pages, or the command that serves them; None if it was never uploaded."""
    state = record.mlflow
    if not state.get("run_id"):
        return None
    uri = str(state["uri"] or store_database(store))
    if uri.startswith(("http://", "https://")):
        return f"{uri}/#/experiments/{state['experiment_id']}/runs/{state['run_id']}"
    return f"mlflow ui --backend-store-uri {uri}"


def _stamp(entry: Mapping[str, Any]) -> str:
    return f"{entry['state']} {entry['key']}"


def _git(found: _Found) -> str:
    return str(found.manifest.get("environment", {}).get("git", "unknown"))


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`; other values are written as JSON."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(str(number), item) for number, item in enumerate(value)]
    else:
        return {prefix: value if isinstance(value, str) and value else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, item in items:
        flat |= _flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def _note(record: RunRecord) -> str:
    """The note at the top of the run's page, in Markdown."""
    lines = [f"## {record.name}: {record.state}", ""]
    if record.decision is not None:
        lines += [f"**Decision: {record.decision.get('verdict', 'unknown')}**", ""]
        lines += [f"- {reason}" for reason in record.decision.get("reasons", [])]
        lines.append("")
    done = sum(entry["state"] == "done" for entry in record.jobs.values())
    lines.append(
        f"{len(record.jobs)} jobs: {done} done in this run, {len(record.jobs) - done} reused from earlier runs. "
        f"Run `{record.id}`, started {record.created}."
    )
    return "\n".join(lines)
