"""From drift to a promoted, reloaded and verified draft, unattended, on real things; twice more with something going wrong.

The three tests follow one another in one deployment."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.deployment import RETRAINING, WATCH, Deployment, deployed
from tests.service.timeline import STAGES, events, seconds, table
from tests.service.traffic import acceptance, p95, worst

_CALM, _MEASURED = 90.0, 60.0  # seconds of traffic before the first drift, and of each measurement
_FELL, _BACK = 0.15, 0.15  # by how much acceptance falls at the least, and comes back


def _named_by(variable: str, what: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: it names {what}; `make test-service` sets it")
    return Path(os.environ[variable])


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    vllm, airflow = _named_by("VLLM_PYTHON", "the engine's Python"), _named_by("AIRFLOW_PYTHON", "Airflow's Python")
    place = tmp_path_factory.mktemp("service")
    with deployed(place, vllm, airflow) as found:
        found.wait(lambda: {WATCH, RETRAINING} <= set(found.airflow.dag_ids()), "reading the DAGs")
        yield found


def _retrained(deployment: Deployment, before: set[str]) -> str:
    """The run that the drift has started, once it has ended."""
    (run,) = deployment.wait(lambda: set(deployment.airflow.runs(RETRAINING)) - before, "the start of a retraining")
    deployment.wait(
        lambda: deployment.airflow.runs(RETRAINING)[run] in ("success", "failed"), "the end of the retraining"
    )
    return str(run)


def _show(deployment: Deployment, run: str, began: float, name: str) -> None:
    text = table(events(deployment, run, began), began)
    print(f"\n{name}\n{text}")
    (deployment.place / f"{name}.md").write_text(text + "\n")


def _states(deployment: Deployment, run: str) -> dict[str, Any]:
    return {name: task["state"] for name, task in deployment.tasks(RETRAINING, run).items()}


def _aliases(deployment: Deployment) -> dict[str, str]:
    model = deployment.mlflow.call("registered-models/get?name=reference-draft")["registered_model"]
    return {one["alias"]: one["version"] for one in model["aliases"]}


def test_a_drift_is_retrained_promoted_reloaded_and_verified(deployment: Deployment) -> None:
    """Nobody does anything: the traffic changes, and acceptance is back."""
    traffic = deployment.traffic
    kind = worst(traffic.url)
    time.sleep(_CALM)
    calm = traffic.between(time.time() - _MEASURED, time.time())
    assert deployment.verdict() == "steady"
    assert deployment.airflow.runs(RETRAINING) == {}

    drifted = traffic.drift(kind)
    run = _retrained(deployment, set())
    _show(deployment, run, drifted, "drift")
    expected = dict.fromkeys(("begin", *STAGES, "started", "settle", "verify", "report"), "success")
    expected |= dict.fromkeys(("waiting", "approval", "approve"), "skipped")
    assert _states(deployment, run) == expected
    assert _aliases(deployment) == {"champion": "2", "previous": "1"}
    assert [serves for _, serves in deployment.starts()] == ["version-1", "version-2"]
    assert ("verified", "2", False) == (
        deployment.verified().action,
        deployment.verified().version,
        deployment.verified().reloaded,
    )

    since = seconds(str(deployment.record(run)["config"]["corpus"]["since"]))
    assert abs(since - drifted) < 120  # a look is a minute
    time.sleep(_MEASURED)
    fell = traffic.between(drifted, seconds(deployment.tasks(RETRAINING, run)["begin"]["start_date"]))
    back = traffic.between(time.time() - _MEASURED, time.time())
    for name, answered in (("before the drift", calm), ("after it", fell), ("after the promotion", back)):
        print(f"{name}: {len(answered)} requests, acceptance {acceptance(answered):.3f}, p95 {p95(answered):.3f} s")
    assert acceptance(fell) < acceptance(calm) - _FELL
    assert acceptance(back) > acceptance(fell) + _BACK
    deployment.settle_down()
    assert list(deployment.airflow.runs(RETRAINING)) == [run]


def test_an_engine_that_loads_the_wrong_files_is_told_again(deployment: Deployment) -> None:
    """After the promotion it comes back with the draft before. It is seen and told once more; the new draft is not banned."""
    before, starts = set(deployment.airflow.runs(RETRAINING)), len(deployment.starts())
    deployment.wrong_files_once("version-2")
    drifted = deployment.traffic.drift(worst(deployment.traffic.url))
    run = _retrained(deployment, before)
    _show(deployment, run, drifted, "wrong files")
    assert _states(deployment, run)["verify"] == "success"
    assert [serves for _, serves in deployment.starts()][starts:] == ["version-2", "version-3"]
    found = deployment.verified()
    assert (found.action, found.version, found.reloaded) == ("verified", "3", True)
    assert _aliases(deployment)["champion"] == "3"
    assert [change.action for change in deployment.history()] == ["promote"] * 3
    deployment.settle_down()


def test_a_draft_that_falls_short_is_rolled_back(deployment: Deployment) -> None:
    """The traffic changes once more when the draft is served: in production it falls short of its examination."""
    before, starts = set(deployment.airflow.runs(RETRAINING)), len(deployment.starts())
    drifted = deployment.traffic.drift(worst(deployment.traffic.url))
    (run,) = deployment.wait(lambda: set(deployment.airflow.runs(RETRAINING)) - before, "the start of a retraining")
    deployment.wait(lambda: _states(deployment, run)["promote"] == "success", "the promotion")
    deployment.traffic.drift(worst(deployment.traffic.url))
    assert run == _retrained(deployment, before)
    _show(deployment, run, drifted, "falls short")
    states = _states(deployment, run)
    assert (states["promote"], states["verify"], states["report"]) == ("success", "failed", "success")
    assert [serves for _, serves in deployment.starts()][starts:] == ["version-4", "version-3"]
    found = deployment.verified()
    assert (found.action, found.version, found.reloaded) == ("roll_back", "4", False)
    assert _aliases(deployment)["champion"] == "3"
    assert [change.action for change in deployment.history()] == [*["promote"] * 4, "rollback"]
