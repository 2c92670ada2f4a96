"""What the watch counted, as a series of metrics in MLflow: one MLflow run for each registered name."""

from collections.abc import Mapping
from time import time

from pipeline.config.root import Config
from pipeline.registry.mlflow_client import (
    answering,
    client_for,
    experiment_id,
    log_batch,
    step_metrics,
    tracking_location,
)
from pipeline.registry.parent_run import find_or_create_run
from pipeline.store.artifacts import Store


def log_watch(config: Config, store: Store, name: str, figures: Mapping[str, float], step: int) -> None:
    """Add a point of each figure at `step`. UnderstudyError if MLflow does not answer."""
    location = tracking_location(config, store)
    client = client_for(location)
    with answering(location):
        run, _ = find_or_create_run(client, experiment_id(client, location), f"watch-{name}", kind="watch")
        log_batch(client, run, step_metrics(((key, value, step) for key, value in figures.items()), int(time() * 1000)))
