"""The same DAGs with a pod template: what would be asked of Kubernetes, without a cluster."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from standin import ROOT, load

TEMPLATE = ROOT / "docs" / "examples" / "kubernetes" / "pod.yaml"
PROVIDER = "airflow.providers.cncf.kubernetes.operators.pod"


CLUSTER = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: nobody, namespace: drafts}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: nobody, user: {}}]
"""


def _cluster(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    (place / "kubeconfig").write_text(CLUSTER)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(place / "kubeconfig"))
    monkeypatch.setenv("UNDERSTUDY_POD", str(TEMPLATE))


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """By task, the pod that the provider would create. It reads the address of a cluster, and asks it nothing."""
    _cluster(monkeypatch, tmp_path)
    tasks = [
        task for kind in ("acceptance_watch", "acceptance_canary", "draft_retraining") for task in load(kind).tasks
    ]
    return {task.task_id: task.build_pod_request_obj() for task in tasks if hasattr(task, "build_pod_request_obj")}


def _container(pod: Any) -> Any:
    return next(one for one in pod.spec.containers if one.name == "understudy")


def test_every_command_runs_in_a_pod_of_the_template(pods: dict[str, Any]) -> None:
    """Image, secrets and volumes are the template's; the script and its words are the task's."""
    assert {"watch", "canary", "pair", "distill", "promote", "waiting", "approve", "settle", "verify", "report"} <= set(
        pods
    )
    for name, pod in pods.items():
        container = _container(pod)
        assert container.image == "registry.internal/understudy:0.2.0", name
        assert container.command[:2] == ["bash", "-c"]
        assert container.env_from[0].secret_ref.name == "understudy"
        assert pod.spec.security_context.run_as_user == 10001
        assert {"store", "draft", "config"} <= {volume.name for volume in pod.spec.volumes}
        words = {one.name: one.value for one in container.env}
        assert words["HF_HOME"] == "/var/lib/understudy/huggingface"
        assert words["CALL_COMMAND"]


def test_only_stages_ask_for_a_gpu(pods: dict[str, Any]) -> None:
    """A look every 5 minutes must not occupy one."""
    asking = {name for name, pod in pods.items() if "nvidia.com/gpu" in _container(pod).resources.limits}
    assert asking == {"pair", "corpus", "generate", "distill", "quantize", "evaluate", "speed", "gate", "promote"}
    assert _container(pods["watch"]).resources.limits == {"memory": "8Gi"}


def test_answers_come_back_through_the_container_of_the_provider(pods: dict[str, Any]) -> None:
    """Only where a task needs them."""
    asked = {name for name, pod in pods.items() if len(pod.spec.containers) > 1}
    assert asked == {"watch", "canary"}


def test_no_variable_of_a_pod_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`$(MLFLOW_TRACKING_TOKEN)` in a parameter of the DAG would put the token into the command's words, and so into the log."""
    _cluster(monkeypatch, tmp_path)
    task = load("draft_retraining").get_task("pair")
    given = {
        "params": {**task.params.dump(), "config": "/c/$(MLFLOW_TRACKING_TOKEN)$x.yaml"},
        "run_id": "r",
        "task": task,
    }
    task.render_template_fields({**given, "ti": SimpleNamespace(xcom_pull=lambda *_, **__: "r")})
    task._pre_execute_hook(given)  # as the task runner does between rendering and execution
    words = {one.name: one.value for one in _container(task.build_pod_request_obj()).env}
    assert words["CALL_SUBJECT"] == "/c/$$(MLFLOW_TRACKING_TOKEN)$$x.yaml"


def test_without_a_pod_template_the_provider_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, the DAGs run on the worker; with a template the import error names the module."""
    monkeypatch.setitem(sys.modules, PROVIDER, None)
    assert load("draft_retraining").task_ids
    monkeypatch.setenv("UNDERSTUDY_POD", str(TEMPLATE))
    errors = DagBag(ROOT / "dags").import_errors
    assert len(errors) == 2
    assert all(PROVIDER in error for error in errors.values())
