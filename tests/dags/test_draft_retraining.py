"""The retraining DAG, run by Airflow in this process: first against a stand-in command, then against the real one."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

ROOT = Path(__file__).resolve().parents[2]
DAG_FILE = ROOT / "dags" / "draft_retraining.py"
STAGES = ["pair", "corpus", "generate", "distill", "quantize", "evaluate", "gate", "promote"]

# Notes its arguments and exits as told: `exits` has, for each stage, the code of each call; the last one stays.
STAND_IN = """#!{python} -S
import json, sys
log, exits = {log!r}, {exits!r}
with open(log, "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
stage = sys.argv[2] if sys.argv[1] in ("stage", "champion") else "show"
with open(log) as stream:
    calls = sum(stage in json.loads(line)[:2] for line in stream)
codes = exits.get(stage, [0])
sys.exit(codes[min(calls, len(codes)) - 1])
"""


@dataclass
class Ran:
    """How a DAG run ended: its state, each task's, and the calls that the command saw."""

    id: str
    state: str
    tasks: dict[str, str]
    calls: list[list[str]]

    @property
    def called(self) -> list[str]:
        return [call[0] if call[0] == "show" else call[1] for call in self.calls]


def load(path: Path = DAG_FILE) -> DAG:
    """The DAG as Airflow reads it, freshly."""
    bag = DagBag(path)
    assert bag.import_errors == {}
    dag: DAG = bag.dags["draft_retraining"]
    return dag


def run(dag: DAG, conf: Mapping[str, Any]) -> tuple[str, str, dict[str, str]]:
    """Run `dag` to its end; its run id, state and tasks' states."""
    ended = dag.test(run_conf=dict(conf))
    states = {task.task_id: str(task.state) for task in ended.get_task_instances()}
    return str(ended.run_id), str(ended.state), states


Start = Callable[..., Ran]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs the DAG against a stand-in; `exits` maps a stage to the exit code of each of its calls."""

    def started(exits: Mapping[str, list[int]] | None = None, retries: int = 0, **conf: Any) -> Ran:
        log, command = tmp_path / "calls.jsonl", tmp_path / "understudy"
        command.write_text(STAND_IN.format(python=sys.executable, log=str(log), exits=dict(exits or {})))
        command.chmod(0o755)
        dag = load()
        for task in dag.tasks:
            task.retries, task.retry_delay, task.retry_exponential_backoff = min(task.retries, retries), timedelta(0), 0
        given = {"config": "/c.yaml", "store": "/s", "executable": str(command)} | conf
        run_id, state, tasks = run(dag, given)
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return Ran(run_id, state, tasks, calls)

    return started


def test_every_dag_file_is_imported_without_an_error() -> None:
    """Airflow reads the folder as shipped."""
    assert DagBag(DAG_FILE.parent).import_errors == {}


def test_passing_run_calls_every_stage_in_order_with_the_id_of_the_dag_run(start: Start) -> None:
    """A pass: each stage once, all given the same run and store, then what follows the champion, then the report."""
    ran = start()
    options = [f"--run={ran.id}", "--store=/s"]
    assert ran.calls == [["stage", stage, *options, "--", "/c.yaml"] for stage in STAGES] + [
        ["champion", "settle", "--store=/s", "--", "/c.yaml"],
        ["show", "--store=/s", "--", ran.id],
    ]
    assert ran.tasks == dict.fromkeys([*STAGES, "settle", "report"], "success")
    assert ran.state == "success"


def test_refusal_by_the_gate_is_a_skip_and_not_a_failure(start: Start) -> None:
    """Exit code 3 of the gate: gate and promote skipped, promote never called, the report made, the run successful."""
    ran = start({"gate": [3]})
    assert ran.tasks == dict.fromkeys(STAGES[:6], "success") | {
        "gate": "skipped",
        "promote": "skipped",
        "settle": "skipped",
        "report": "success",
    }
    assert ran.called == [*STAGES[:7], "show"]
    assert ran.state == "success"


def test_refusal_by_promote_is_a_skip_and_not_a_failure(start: Start) -> None:
    """Promote may refuse as well, after the gate has passed."""
    ran = start({"promote": [3]})
    assert (ran.tasks["gate"], ran.tasks["promote"], ran.state) == ("success", "skipped", "success")


def test_failing_stage_fails_the_run_and_is_still_reported(start: Start) -> None:
    """The report runs after a failure and, being the last task, does not hide it."""
    ran = start({"distill": [1]})
    assert ran.tasks["distill"] == "failed"
    assert {ran.tasks[stage] for stage in STAGES[4:]} == {"upstream_failed"}
    assert ran.called == [*STAGES[:4], "show"]
    assert ran.tasks["report"] == "success"
    assert ran.state == "failed"


@pytest.mark.parametrize(("stage", "code"), [("evaluate", 3), ("evaluate", 99), ("gate", 99), ("gate", 1)])
def test_no_other_exit_code_is_taken_for_a_refusal(start: Start, stage: str, code: int) -> None:
    """Exit code 3 means refused from the gate only, and 99, Airflow's own skip, means nothing here."""
    ran = start({stage: [code]})
    assert (ran.tasks[stage], ran.state) == ("failed", "failed")


@pytest.mark.parametrize(("stage", "code"), [("gate", 3), ("promote", 3), ("distill", 1)])
def test_nothing_is_settled_without_a_promotion(start: Start, stage: str, code: int) -> None:
    """A refusal or a failure leaves the servers alone."""
    ran = start({stage: [code]})
    assert ran.tasks["settle"] in ("skipped", "upstream_failed")
    assert "settle" not in ran.called


@pytest.mark.parametrize("code", [1, 3])
def test_failing_to_settle_fails_the_run(start: Start, code: int) -> None:
    """The servers still have the draft from before, or the alias was moved by hand: somebody has to look."""
    ran = start({"settle": [code]})
    assert (ran.tasks["promote"], ran.tasks["settle"], ran.state) == ("success", "failed", "failed")


def test_settling_is_tried_again(start: Start) -> None:
    """Such as after a webhook that did not answer."""
    ran = start({"settle": [1, 0]}, retries=1)
    assert (ran.called[-3:], ran.state) == (["settle", "settle", "show"], "success")


def test_failing_report_does_not_undo_a_promotion(start: Start) -> None:
    """What failed is the reading, not the run."""
    ran = start({"show": [1]})
    assert (ran.tasks["report"], ran.state) == ("failed", "success")


def test_failed_stage_is_tried_again_within_the_same_run(start: Start) -> None:
    """A second try goes on with the same run id."""
    ran = start({"generate": [1, 0]}, retries=1)
    assert ran.called == ["pair", "corpus", "generate", *STAGES[2:], "settle", "show"]
    assert {call[2] for call in ran.calls if call[0] == "stage"} == {f"--run={ran.id}"}
    assert ran.state == "success"


def test_parameters_are_inert_and_arrive_as_they_were_given(start: Start, tmp_path: Path) -> None:
    """Shell syntax, Jinja syntax and leading dashes in a parameter are data: one argument each, nothing executed."""
    mark = tmp_path / "executed"
    overrides = [
        f"name=$(touch {mark})",
        f"name='; touch {mark}; '",
        f'name="; touch {mark}; "',
        f"name=`touch {mark}`",
        f"name=a && touch {mark}",
        "name={{ 7 * 7 }}{% raw %}",
        "name=a  b\\n*",
        "name=--help",
        "name=a=b",
        "name=",
    ]
    config, store = f"/c $(touch {mark}).yaml", f"/s'; touch {mark}; '"
    ran = start(config=config, store=store, overrides=overrides)
    expected = [f"--run={ran.id}", f"--store={store}", *(f"--set={item}" for item in overrides), "--", config]
    assert ran.calls[0] == ["stage", "pair", *expected]
    assert ran.calls[-1] == ["show", expected[1], "--", ran.id]
    assert ran.state == "success"
    assert not mark.exists()


def test_run_id_can_be_chosen(start: Start) -> None:
    """A given run id goes to every call instead of the DAG run's."""
    ran = start(run_id="again-7")
    assert {option for call in ran.calls for option in call if option.startswith("--run")} == {"--run=again-7"}
    assert ran.calls[-1] == ["show", "--store=/s", "--", "again-7"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", "relative.yaml"),
        ("store", "--help"),
        ("config", None),
        ("overrides", "distill.max_steps=1"),
        ("overrides", ["--help"]),
        ("overrides", ["a=1\nb=2"]),
        ("run_id", "../elsewhere"),
        ("run_id", "-x"),
        ("executable", "/bin/sh"),
        ("executable", "understudy; ls"),
    ],
)
def test_wrong_parameter_is_refused(name: str, value: object) -> None:
    """The types of the parameters are checked before anything runs."""
    with pytest.raises(ParamValidationError):
        load().params[name] = value


def test_run_with_a_wrong_parameter_is_not_started(start: Start, tmp_path: Path) -> None:
    """What a trigger brings along is checked as well, before the command is called."""
    with pytest.raises(ParamValidationError):
        start(overrides=["--help"])
    assert not (tmp_path / "calls.jsonl").exists()


def test_as_shipped_it_runs_weekly_one_run_at_a_time() -> None:
    """Defaults: weekly, no catching up, retried, every task with a limit."""
    dag = load()
    assert (dag.schedule, dag.catchup, dag.max_active_runs) == ("0 3 * * 1", False, 1)
    assert {task.retries for task in dag.tasks if task.task_id in STAGES} == {2}
    assert all(task.execution_timeout for task in dag.tasks)
    dag.validate()  # a scheduled DAG needs valid defaults


def test_schedule_and_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator sets the scheduled runs up without editing the file."""
    monkeypatch.setenv("UNDERSTUDY_SCHEDULE", "none")
    monkeypatch.setenv("UNDERSTUDY_CONFIG", "/a.yaml")
    monkeypatch.setenv("UNDERSTUDY_STORE", "/b")
    monkeypatch.setenv("UNDERSTUDY_BIN", "/opt/x/bin/understudy")
    dag = load()
    assert dag.schedule is None
    assert (dag.params["config"], dag.params["store"]) == ("/a.yaml", "/b")
    assert dag.params["executable"] == "/opt/x/bin/understudy"


def real_run(command: str, store: Path, **conf: object) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Run the DAG with the real command; the DAG run's state, the tasks' states and the store's record of the run."""
    dag = load()
    for task in dag.tasks:
        task.retries = 0  # a retry would only repeat a defect, five minutes later
    config = str(ROOT / "configs" / "smoke.yaml")
    run_id, state, tasks = run(dag, {"config": config, "store": str(store), "executable": command} | conf)
    return state, tasks, json.loads((store / "runs" / run_id / "run.json").read_text())


@pytest.fixture(scope="session")
def promoted(real_command: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A store in which the real command has promoted the smoke pair's draft, and how that run ended."""
    store = tmp_path_factory.mktemp("store")
    return store, real_run(real_command, store)


def test_real_run_promotes(promoted: tuple[Path, Any]) -> None:
    """The smoke config, from nothing to a champion."""
    state, tasks, record = promoted[1]
    assert state == "success"
    assert tasks == dict.fromkeys([*STAGES, "settle", "report"], "success")
    assert record["state"] == "finished"
    assert record["decision"]["verdict"] != "refuse"


def test_real_run_refuses_a_ruined_draft(promoted: tuple[Path, Any], real_command: str) -> None:
    """One step at an absurd learning rate: examined, refused, shown as skipped, the DAG run successful."""
    store, _ = promoted
    overrides = ["distill.max_steps=1", "distill.learning_rate=10"]
    state, tasks, record = real_run(real_command, store, overrides=overrides)
    assert (tasks["evaluate"], tasks["gate"], tasks["promote"], tasks["report"]) == (
        "success",
        "skipped",
        "skipped",
        "success",
    )
    assert state == "success"
    assert (record["state"], record["decision"]["verdict"]) == ("refused", "refuse")
