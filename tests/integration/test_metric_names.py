"""Domains as MLflow's database has them."""

from pipeline.escaping.names import unescaped_name
from pipeline.registry.mlflow_client import client_for, experiment_id, log_batch, step_metrics, tracking_location
from pipeline.registry.run_content import decision_points
from pipeline.store.artifacts import Store
from tests.decisions import make_decision
from tests.integration.mlflow_fixtures import config_of, mlflow_template, store

__all__ = ["mlflow_template", "store"]

_PATHS = ("code", "/v1/chat/completions", "a//b", "a/", ".", "..")
_DOMAINS = (*_PATHS, "日本", "中文", "a\nb", "\x1b[1m", "x" * 200, "é" * 200)


def test_every_domain_has_metrics_of_its_own(store: Store) -> None:
    """MLflow reads a name as a path and takes few characters; no domain is refused at the end of a run, and no two become one."""
    location = tracking_location(config_of(), store)
    client = client_for(location)
    run_id = client.create_run(experiment_id(client, location)).info.run_id
    for domain in _DOMAINS:
        log_batch(client, run_id, step_metrics(decision_points(make_decision(domain=domain)), 0))
        log_batch(client, run_id, params={f"distill.domain_shares.{domain}": "0.1"})
    data = client.get_run(run_id).data

    for kind in ("gain/", "acceptance_rate/", "acceptance_rate_before/"):
        assert set(_DOMAINS) == {
            unescaped_name(name.removeprefix(kind)) for name in data.metrics if name.startswith(kind)
        }
    assert len(_DOMAINS) == len(data.params)
