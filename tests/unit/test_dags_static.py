"""What can be held of the DAG files without Airflow: read as syntax trees, never imported."""

import ast
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
