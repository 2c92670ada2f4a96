"""The MLflow run of an Understudy run, which tracking fills and the registry links the draft to; and that of a registered name,
which has what the watch counted as a series of metrics."""

from collections.abc import Mapping
from importlib.metadata import version
from time import time
from typing import Any

from pipeline.config.root import Config
from pipeline.registry.history import acting_person
from pipeline.registry.mlflow_client import (
    answering,
    client_for,
    experiment_id,
    log_batch,
    step_metrics,
    tracking_location,
)
from pipeline.store.artifacts import Store

RUN_TAG, KIND_TAG = "understudy.run", "understudy.kind"


def find_or_create_run(
    client: Any, experiment: str, run_id: str, begun_ms: int | None = None, kind: str = "run"
) -> tuple[str, bool]:
    """The id of the MLflow run of `run_id`, and whether it was created here. A killed process may have created it before."""
    filter_string = f"tags.`{RUN_TAG}` = '{run_id}' AND tags.`{KIND_TAG}` = '{kind}'"
    earlier = client.search_runs([experiment], filter_string, max_results=1)
    if earlier:
        return str(earlier[0].info.run_id), False
    tags = {
        RUN_TAG: run_id,
        KIND_TAG: kind,
        "mlflow.user": acting_person(),  # only MLflow's fluent interface sets these two
        "mlflow.source.name": f"understudy {version('understudy')}",
        "mlflow.source.type": "LOCAL",
    }
    return str(client.create_run(experiment, begun_ms, tags, run_name=run_id).info.run_id), True


def log_watch(config: Config, store: Store, name: str, figures: Mapping[str, float], step: int) -> None:
    """Add a point of each figure at `step`. UnderstudyError if MLflow does not answer."""
    location = tracking_location(config, store)
    client = client_for(location)
    with answering(location):
        run, _ = find_or_create_run(client, experiment_id(client, location), f"watch-{name}", kind="watch")
        log_batch(client, run, step_metrics(((key, value, step) for key, value in figures.items()), int(time() * 1000)))
