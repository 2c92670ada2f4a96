"""The DAGs that watch, run by Airflow in this process against a stand-in command; and the list of pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import select
from standin import ROOT, Answers, StandIn, load, run, stand_in

DRIFT = {"drift": "low", "since": "2026-11-20T00:00:00Z", "message": "acceptance is below what it should be"}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, in the service of a pair whose name no other test has."""
    made = stand_in(tmp_path / "bin")
    pairs = [{"name": tmp_path.name, "config": "/c.yaml", "store": "/s", "bin": made.command}]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    monkeypatch.setenv("UNDERSTUDY_PAIRS", str(tmp_path / "pairs.json"))
    return made


def ran(kind: str, command: StandIn, answers: Answers) -> tuple[str, dict[str, str]]:
    """How the DAG of the pair ended."""
    command.answer(answers)
    _, state, tasks = run(load(f"{kind}.{command.place.parent.name}"))
    return state, tasks


def events(kind: str, command: StandIn) -> list[Any]:
    """What the events of the pair's asset say."""
    name = f"understudy/{kind}/{command.place.parent.name}"
    with create_session() as session:
        return [event.extra for event in session.scalars(select(AssetEvent)) if event.asset.name == name]


def test_without_a_drift_the_run_is_green_and_no_event_is_emitted(command: StandIn) -> None:
    """Exit code 0: `watch` succeeded, there was nothing to announce."""
    state, tasks = ran("acceptance_watch", command, {"watch": [(0, "{}")]})
    assert (state, tasks) == ("success", {"watch": "success", "drift": "skipped"})
    assert command.calls == [["watch", "--once", "--json", "--for-retraining", "--store=/s", "--", "/c.yaml"]]
    assert events("drift", command) == []


def test_a_drift_is_not_announced_at_every_look(command: StandIn) -> None:
    """Exit code 3: an event with the evidence, which may be of several lines. The watch looks again every few minutes."""
    answers = {"watch": [(3, json.dumps(DRIFT, indent=1))]}
    assert ran("acceptance_watch", command, answers) == ("success", {"watch": "success", "drift": "success"})
    assert ran("acceptance_watch", command, answers) == ("success", {"watch": "success", "drift": "skipped"})
    assert events("drift", command) == [DRIFT]


def test_a_drift_is_announced_again_where_no_retraining_followed(
    command: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as where the log had too few rows since the change."""
    monkeypatch.setenv("UNDERSTUDY_RETRY_HOURS", "0")
    answers = {"watch": [(3, json.dumps(DRIFT))]}
    for _ in range(2):
        assert ran("acceptance_watch", command, answers) == ("success", {"watch": "success", "drift": "success"})
    assert events("drift", command) == [DRIFT, DRIFT]


def test_too_high_an_acceptance_is_an_alarm(command: StandIn) -> None:
    """Such as a loop in the output: red, and no retraining."""
    state, tasks = ran("acceptance_watch", command, {"watch": [(3, json.dumps(DRIFT | {"drift": "high"}))]})
    assert (state, tasks) == ("failed", {"watch": "success", "drift": "failed"})
    assert events("drift", command) == []


@pytest.mark.parametrize("code", [1, 2, 99, 100])
def test_a_watch_that_could_not_look_is_red(command: StandIn, code: int) -> None:
    """No other exit code is an answer."""
    state, tasks = ran("acceptance_watch", command, {"watch": [(code, "{}")]})
    assert (state, tasks["watch"]) == ("failed", "failed")
    assert events("drift", command) == []


def canary(target: str = "as_examined", traffic: str = "as_examined", draft: str = "as_examined") -> dict[str, Any]:
    """What the command answers, but for the evidence."""
    verdicts = {"target": target, "traffic": traffic, "draft": draft}
    return {name: {"verdict": verdict, "why": "so"} for name, verdict in verdicts.items()} | {
        "endpoints": [{"url": "u"}]
    }


@pytest.mark.parametrize(
    ("code", "said", "ends"),
    [
        (0, canary(), ("success", "skipped", "skipped")),
        (3, canary(traffic="changed"), ("success", "skipped", "skipped")),
        (3, canary(target="changed"), ("success", "success", "skipped")),
        (3, canary(target="contradictory"), ("failed", "skipped", "failed")),
        (3, canary(draft="not_as_examined"), ("failed", "skipped", "failed")),
        (3, canary(target="changed", draft="not_as_examined"), ("failed", "success", "failed")),
    ],
)
def test_the_canary_tells_the_target_from_the_engine(
    command: StandIn, code: int, said: dict[str, Any], ends: tuple[str, str, str]
) -> None:
    """Another target is retrained for; another draft than was examined is an alarm, and so is an engine that contradicts
    itself."""
    state, tasks = ran("acceptance_canary", command, {"canary": [(code, json.dumps(said))]})
    assert (state, tasks["target"], tasks["engine"]) == ends
    announced = [{key: said[key] for key in ("target", "traffic", "draft")}]
    assert events("target", command) == (announced if ends[1] == "success" else [])


def test_a_canary_without_an_answer_is_red(command: StandIn) -> None:
    """Exit code 1: an engine could not be asked."""
    state, tasks = ran("acceptance_canary", command, {"canary": [(1, "{}")]})
    assert (state, tasks["canary"], tasks["engine"]) == ("failed", "failed", "upstream_failed")
    assert events("target", command) == []


def test_a_run_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of the file has its DAGs, assets, place and pool; what it leaves out comes from the environment."""
    pairs = [
        {"name": "chat", "config": "/chat.yaml", "queue": "gpu", "pool": "drafts", "cooldown_hours": 24},
        {"name": "code", "config": "/code.yaml", "schedule": "none", "watch_schedule": "none"},
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    monkeypatch.setenv("UNDERSTUDY_PAIRS", str(tmp_path / "pairs.json"))
    monkeypatch.setenv("UNDERSTUDY_STORE", "/all")
    bag = DagBag(ROOT / "dags")

    kinds = ("acceptance_watch", "acceptance_canary", "draft_retraining")
    assert bag.import_errors == {}
    assert set(bag.dags) == {f"{kind}.{name}" for kind in kinds for name in ("chat", "code")}
    assert {(task.queue, task.pool) for kind in kinds for task in bag.dags[f"{kind}.chat"].tasks} == {("gpu", "drafts")}
    assert {task.pool for task in bag.dags["draft_retraining.code"].tasks} == {"default_pool"}
    assert bag.dags["draft_retraining.chat"].params["store"] == "/all"
    assert bag.dags["acceptance_watch.code"].schedule is None


@pytest.mark.parametrize("kind", ["acceptance_watch", "acceptance_canary"])
def test_one_look_at_a_time_and_none_is_made_up_for(command: StandIn, kind: str) -> None:
    """Two looks at once would read the counters twice; a look tried again would say of one what the first has already read."""
    dag = load(f"{kind}.{command.place.parent.name}")
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert {task.retries for task in dag.tasks} == {0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "Expecting value"),
        ("{}", "not a list of objects"),
        ('[{"config": "/c.yaml"}]', "each entry needs a `name`"),
        ('[{"name": "a"}, {"name": "a"}]', "each entry needs a `name` of its own"),
        ('[{"name": "a b"}]', "other characters"),
        ('[{"name": "a", "shedule": "none"}]', "unknown key 'shedule'"),
        ('[{"name": "a", "config": "c.yaml"}]', "not an absolute path"),
        ('[{"name": "a", "cooldown_hours": "long"}]', "could not convert"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_of_pairs_is_an_import_error(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the file and what is wrong; no DAG with other settings than the operator's runs."""
    path = tmp_path / "pairs.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("UNDERSTUDY_PAIRS", str(path))
    bag = DagBag(ROOT / "dags")

    assert set(bag.dags) == set()
    assert all(said in error and str(path) in error for error in bag.import_errors.values())
    assert len(bag.import_errors) == 2
