"""The retraining DAG, run by Airflow in this process: first against a stand-in command, then against the real one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable
from airflow.sdk.exceptions import ParamValidationError
from standin import ROOT, load, run, stand_in, without_waiting

STAGES = ["pair", "corpus", "generate", "distill", "quantize", "evaluate", "speed", "gate", "promote"]
FIRST = ["begin", "started"]
APPROVAL = ["waiting", "approval", "approve"]
AFTER = ["settle", "verify"]


@dataclass
class Ran:
    """How a DAG run ended: its state, each task's, and the calls that the command saw."""

    id: str
    state: str
    tasks: dict[str, str]
    calls: list[list[str]]

    @property
    def called(self) -> list[str]:
        """The stage, or the last word of the command."""
        return [call[0] if call[0] == "show" else call[1] for call in self.calls]


Start = Callable[..., Ran]


def retraining() -> DAG:
    return load("draft_retraining")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs the DAG against a stand-in; `exits` maps the words of a command to the exit code of each of its calls."""

    def started(exits: Mapping[str, list[int]] | None = None, retries: int = 0, **conf: Any) -> Ran:
        command = stand_in(tmp_path / "bin")
        command.answer({words: [(code, "{}") for code in codes] for words, codes in (exits or {}).items()})
        given = {"config": "/c.yaml", "store": "/s", "executable": command.command} | conf
        run_id, state, tasks = run(without_waiting(retraining(), retries), given)
        return Ran(run_id, state, tasks, command.calls)

    return started


def test_every_dag_file_is_imported_without_an_error() -> None:
    """Airflow reads the folder as shipped."""
    assert DagBag(ROOT / "dags").import_errors == {}


def test_passing_run_calls_every_stage_in_order_with_the_id_of_the_dag_run(start: Start) -> None:
    """A pass: each stage once, all given the same run and store, then what follows the champion, then the report."""
    ran = start()
    options = ["--store=/s", f"--run={ran.id}"]
    assert ran.calls == [["stage", stage, *options, "--", "/c.yaml"] for stage in STAGES] + [
        ["show", "--json", "--store=/s", "--", ran.id],
        ["champion", "settle", "--store=/s", "--", "/c.yaml"],
        ["champion", "verify", "--store=/s", "--", "/c.yaml"],
        ["show", "--store=/s", "--", ran.id],
    ]
    assert ran.tasks == dict.fromkeys([*FIRST, *STAGES, *AFTER, "report"], "success") | dict.fromkeys(
        APPROVAL, "skipped"
    )
    assert ran.state == "success"


def test_refusal_by_the_gate_is_a_skip_and_not_a_failure(start: Start) -> None:
    """Exit code 3 of the gate: gate and promote skipped, promote never called, the report made, the run successful."""
    ran = start({"stage gate": [3]})
    assert ran.tasks == dict.fromkeys([*FIRST, *STAGES[:7], "report"], "success") | dict.fromkeys(
        ["gate", "promote", *APPROVAL, *AFTER], "skipped"
    )
    assert ran.called == [*STAGES[:8], "show"]
    assert ran.state == "success"


def test_refusal_by_promote_is_a_skip_and_not_a_failure(start: Start) -> None:
    """Promote may refuse as well, after the gate has passed."""
    ran = start({"stage promote": [3]})
    assert (ran.tasks["gate"], ran.tasks["promote"], ran.state) == ("success", "skipped", "success")


def test_failing_stage_fails_the_run_and_is_still_reported(start: Start) -> None:
    """The report runs after a failure and, being the last task, does not hide it."""
    ran = start({"stage distill": [1]})
    assert ran.tasks["distill"] == "failed"
    assert {ran.tasks[stage] for stage in STAGES[4:]} == {"upstream_failed"}
    assert ran.called == [*STAGES[:4], "show"]
    assert ran.tasks["report"] == "success"
    assert ran.state == "failed"


@pytest.mark.parametrize(("stage", "code"), [("evaluate", 3), ("evaluate", 99), ("gate", 99), ("gate", 1)])
def test_no_other_exit_code_is_taken_for_a_refusal(start: Start, stage: str, code: int) -> None:
    """Exit code 3 means refused from the gate only, and 99, Airflow's own skip, means nothing here."""
    ran = start({f"stage {stage}": [code]})
    assert (ran.tasks[stage], ran.state) == ("failed", "failed")


@pytest.mark.parametrize(("stage", "code"), [("gate", 3), ("promote", 3), ("distill", 1)])
def test_nothing_is_settled_without_a_promotion(start: Start, stage: str, code: int) -> None:
    """A refusal or a failure leaves the servers alone."""
    ran = start({f"stage {stage}": [code]})
    assert {ran.tasks[task] for task in AFTER} <= {"skipped", "upstream_failed"}
    assert not {"settle", "verify"} & set(ran.called)


@pytest.mark.parametrize("code", [1, 3])
def test_failing_to_settle_fails_the_run(start: Start, code: int) -> None:
    """The servers still have the draft from before, or the alias was moved by hand: somebody has to look."""
    ran = start({"champion settle": [code]})
    assert (ran.tasks["promote"], ran.tasks["settle"], ran.state) == ("success", "failed", "failed")


def test_settling_is_tried_again(start: Start) -> None:
    """Such as after a webhook that did not answer."""
    ran = start({"champion settle": [1, 0]}, retries=1)
    assert (ran.called[-4:], ran.state) == (["settle", "settle", "verify", "show"], "success")


@pytest.mark.parametrize("code", [1, 3])
def test_engines_that_do_not_do_what_was_examined_fail_the_run_at_once(start: Start, code: int) -> None:
    """A second try could answer differently, and hide the first answer."""
    ran = start({"champion verify": [code, 0]}, retries=2)
    assert (ran.tasks["settle"], ran.tasks["verify"], ran.state) == ("success", "failed", "failed")


def test_failing_report_does_not_undo_a_promotion(start: Start) -> None:
    """What failed is the reading, not the run."""
    ran = start({"show": [0, 1]})
    assert (ran.tasks["report"], ran.state) == ("failed", "success")


def test_failed_stage_is_tried_again_within_the_same_run(start: Start) -> None:
    """A second try goes on with the same run id."""
    ran = start({"stage generate": [1, 0]}, retries=1)
    assert ran.called == ["pair", "corpus", "generate", *STAGES[2:], "show", "settle", "verify", "show"]
    assert {call[3] for call in ran.calls if call[0] == "stage"} == {f"--run={ran.id}"}
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
    expected = [f"--store={store}", f"--run={ran.id}", *(f"--set={item}" for item in overrides), "--", config]
    assert ran.calls[0] == ["stage", "pair", *expected]
    assert ran.calls[-1] == ["show", expected[0], "--", ran.id]
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
        retraining().params[name] = value


def test_run_with_a_wrong_parameter_is_not_started(start: Start, tmp_path: Path) -> None:
    """What a trigger brings along is checked as well, before the command is called."""
    with pytest.raises(ParamValidationError):
        start(overrides=["--help"])
    assert not (tmp_path / "bin" / "calls.jsonl").exists()


def test_as_shipped_it_runs_weekly_and_after_a_drift_one_run_at_a_time() -> None:
    """Defaults: weekly or by event, no catching up, retried, every task with a limit."""
    dag = retraining()
    assert isinstance(dag.schedule, AssetOrTimeSchedule)
    assert dag.schedule.timetable == CronTriggerTimetable("0 3 * * 1", timezone="UTC")
    assert names(dag.schedule.asset_condition) == ["understudy/drift/default", "understudy/target/default"]
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert {task.retries for task in dag.tasks if task.task_id in STAGES} == {2}
    assert [] == [
        task.task_id for task in dag.tasks if task.task_id not in (*FIRST, "approval") and not task.execution_timeout
    ]
    dag.validate()  # a scheduled DAG needs valid defaults


def test_what_tasks_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's environment, with its PATH and credentials; a day for what is long; the overrides of the run to settle by; and
    no answer of a person is taken for a refusal."""
    monkeypatch.setenv("UNDERSTUDY_APPROVAL_HOURS", "5")
    dag = retraining()
    long = {task.task_id for task in dag.tasks if task.execution_timeout == timedelta(hours=24)}
    approval, settle = dag.get_task("approval"), dag.get_task("settle")

    assert {task.append_env for task in dag.tasks if hasattr(task, "append_env")} == {True}
    assert long == {"generate", "distill"}
    assert (approval.response_timeout, approval.defaults) == (timedelta(hours=5), ["Reject"])
    assert "CALL_OVERRIDES" in settle.env
    assert dag.get_task("started").upstream_task_ids == {"corpus"}
    assert settle.upstream_task_ids == {"approve", "promote"}


def names(condition: Any) -> list[str]:
    return sorted(asset.name for asset in condition.objects)


def test_schedule_and_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator sets the scheduled runs up without editing the file. Without a schedule a drift still starts a run."""
    monkeypatch.setenv("UNDERSTUDY_SCHEDULE", "none")
    monkeypatch.setenv("UNDERSTUDY_CONFIG", "/a.yaml")
    monkeypatch.setenv("UNDERSTUDY_STORE", "/b")
    monkeypatch.setenv("UNDERSTUDY_BIN", "/opt/x/bin/understudy")
    dag = retraining()
    assert names(dag.schedule) == ["understudy/drift/default", "understudy/target/default"]
    assert (dag.params["config"], dag.params["store"]) == ("/a.yaml", "/b")
    assert dag.params["executable"] == "/opt/x/bin/understudy"


def real_run(command: str, store: Path, **conf: object) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Run the DAG with the real command; the DAG run's state, the tasks' states and the store's record of the run."""
    dag = retraining()
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
    assert tasks == dict.fromkeys([*FIRST, *STAGES, *AFTER, "report"], "success") | dict.fromkeys(APPROVAL, "skipped")
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
