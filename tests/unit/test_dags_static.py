"""What can be held of the DAG files without Airflow: read as syntax trees, never imported."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import EXIT_REFUSED
from pipeline.running.stage_list import STAGE_NAMES

DAGS = sorted((Path(__file__).resolve().parents[2] / "dags").glob("*.py"))


def constants(tree: ast.Module) -> dict[str, object]:
    """The module's literal assignments, by name."""
    found: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def commands(tree: ast.Module) -> list[object]:
    """Every `bash_command` in the module; None for one that is not a literal or a constant of the module."""
    names = constants(tree)
    values = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "bash_command"
    ]
    return [
        value.value if isinstance(value, ast.Constant) else names.get(value.id) if isinstance(value, ast.Name) else None
        for value in values
    ]


def test_stages_of_the_dag_are_those_of_the_plan() -> None:
    """The literal tuple in the DAG follows `stage_list.py`, and so does the code of a refusal."""
    path = next(path for path in DAGS if path.name == "draft_retraining.py")
    found = constants(ast.parse(path.read_text()))
    assert found["STAGES"] == STAGE_NAMES
    assert found["EXIT_REFUSED"] == EXIT_REFUSED


@pytest.mark.parametrize("path", DAGS, ids=lambda path: path.name)
def test_dag_imports_airflow_and_the_standard_library_only(path: Path) -> None:
    """The scheduler's environment has nothing else."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("a relative import" if node.level else str(node.module).partition(".")[0])
    assert imported - {"airflow"} - sys.stdlib_module_names == set()


@pytest.mark.parametrize("path", DAGS, ids=lambda path: path.name)
def test_no_command_is_made_of_template_text(path: Path) -> None:
    """Every command is a fixed string that Airflow's template engine finds nothing in."""
    found = commands(ast.parse(path.read_text()))
    assert [text for text in found if not isinstance(text, str)] == []
    assert [text for text in found if any(mark in str(text) for mark in ("{{", "{%", "{#"))] == []


def test_retraining_dag_has_commands_to_look_at() -> None:
    """The check above would pass on a file it does not understand."""
    path = next(path for path in DAGS if path.name == "draft_retraining.py")
    assert len(commands(ast.parse(path.read_text()))) == 3


@pytest.mark.parametrize("name", ["STAGE_COMMAND", "SETTLE_COMMAND"])
def test_the_log_of_a_task_shows_no_value_that_was_set(name: str) -> None:
    """A URI with a password in an override reaches the command, which refuses it, and not the log."""
    path = next(path for path in DAGS if path.name == "draft_retraining.py")
    command = str(constants(ast.parse(path.read_text()))[name])
    environment = {
        "PATH": os.environ["PATH"],
        "RETRAIN_EXECUTABLE": "echo",
        "RETRAIN_STAGE": "pair",
        "RETRAIN_RUN": "r",
        "RETRAIN_STORE": "/s",
        "RETRAIN_OVERRIDES": "tracking.uri=http://u:SECRET@h\nseed=1",
        "RETRAIN_CONFIG": "/c.yaml",
    }
    ended = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    log, called = ended.stdout.splitlines()

    assert "SECRET" not in log
    assert log.endswith("--set=tracking.uri=... --set=seed=... -- /c.yaml")
    assert called.endswith("--set=tracking.uri=http://u:SECRET@h --set=seed=1 -- /c.yaml")
