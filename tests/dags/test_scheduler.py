"""The loop in a real Airflow: a drift starts one retraining, a person approves it, and the cool-down holds."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from service import Service, running
from standin import ROOT, StandIn, stand_in

SINCE = "2026-11-20T08:00:00Z"
WAITING = json.dumps({"promotion": {"result": "challenger", "approve_with": "understudy champion promote RUN"}})
STAGES = ["pair", "corpus", "generate", "distill", "quantize", "evaluate", "speed", "gate", "promote"]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return stand_in(tmp_path_factory.mktemp("understudy") / "bin")


@pytest.fixture(scope="module")
def airflow(command: StandIn, database: Path) -> Iterator[Service]:
    """DAG files in a folder of the DAG folder, and two pairs that start by event only."""
    place = command.place.parent
    shutil.copytree(ROOT / "dags", place / "dags" / "understudy")
    common = {
        "store": "/s",
        "bin": command.command,
        "watch_schedule": "none",
        "canary_schedule": "none",
        "schedule": "none",
        "retry_hours": 0,
    }
    pairs = [{"name": name, "config": f"/{name}.yaml", **common} for name in ("chat", "code")]
    (place / "pairs.json").write_text(json.dumps(pairs))
    with running(place / "home", place / "dags", database, {"UNDERSTUDY_PAIRS": str(place / "pairs.json")}) as service:
        service.wait(
            lambda: set(service.dag_ids()) >= {"draft_retraining.chat", "acceptance_watch.chat"}, "reading the DAGs"
        )
        yield service


def test_a_drift_is_retrained_approved_and_verified_once(airflow: Service, command: StandIn) -> None:
    """From the watch to the verified draft: one retraining, of this pair only, on data since the change."""
    drift = json.dumps({"drift": "low", "since": SINCE, "message": "acceptance is below what it should be"})
    command.answer({"watch": [(3, drift)], "show": [(0, WAITING)]})
    watch, retraining = "acceptance_watch.chat", "draft_retraining.chat"

    assert airflow.ended(watch, airflow.trigger(watch)) == "success"
    (run,) = airflow.wait(lambda: airflow.runs(retraining), "the start of a retraining")
    airflow.wait(lambda: airflow.tasks(retraining, run)["approval"] == "awaiting_input", "the question for approval")
    assert "champion promote" not in command.called

    airflow.approve(retraining, run, "approval")
    assert airflow.ended(retraining, run) == "success"
    assert set(airflow.tasks(retraining, run).values()) == {"success"}
    assert command.called == [
        "watch",
        *(f"stage {stage}" for stage in STAGES),
        "show",
        "champion promote",
        "champion settle",
        "champion verify",
        "show",
    ]
    options = ["--store=/s", f"--run={run}", f"--set=corpus.since={SINCE}", "--", "/chat.yaml"]
    assert [call for call in command.calls if call[0] == "stage"] == [["stage", stage, *options] for stage in STAGES]
    assert airflow.runs("draft_retraining.code") == {}

    assert airflow.ended(watch, second_look := airflow.trigger(watch)) == "success"
    assert airflow.tasks(watch, second_look)["drift"] == "skipped"

    before = len(command.calls)
    airflow.update("understudy/target/chat")
    runs = airflow.wait(lambda: len(runs := airflow.runs(retraining)) == 2 and runs, "the second run")
    second = next(other for other in runs if other != run)
    assert airflow.ended(retraining, second) == "success"
    assert set(airflow.tasks(retraining, second).values()) == {"skipped"}
    assert len(command.calls) == before
