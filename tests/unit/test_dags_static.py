"""What can be held of the DAG files without Airflow: read as syntax trees, never imported."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.errors import EXIT_REFUSED
from pipeline.running.share_run import IN_PARTS
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


def tasks() -> ModuleType:
    """The shared file, which imports Airflow only where a task is made."""
    specification = importlib.util.spec_from_file_location("understudy_tasks", DAGS[0].with_name("understudy_tasks.py"))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["understudy_tasks"] = module  # a dataclass looks its module up
    specification.loader.exec_module(module)
    return module


TASKS = tasks()
SCRIPTS = {"CALL": TASKS.CALL, "ASK": TASKS.ASK, "ASK_WAITING": TASKS.ASK_WAITING}


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a task with these variables."""
    words = {"PATH": os.environ["PATH"], "CALL_COMMAND": "stage pair", "CALL_STORE": "/s", "CALL_SUBJECT": "/c.yaml"}
    return subprocess.run(
        ["bash", "-c", script], env=words | environment, capture_output=True, text=True, check=False, timeout=30
    )


def test_stages_of_the_dag_are_those_of_the_plan() -> None:
    """The literal tuples in the DAG follow `stage_list.py`, and so does the code of a refusal."""
    path = next(path for path in DAGS if path.name == "draft_retraining.py")
    found = constants(ast.parse(path.read_text()))
    assert (found["STAGES"], found["SHARED"]) == (STAGE_NAMES, IN_PARTS)
    assert TASKS.EXIT_REFUSED == EXIT_REFUSED
    assert f"exit {TASKS.EXIT_NO}" in TASKS.ASK_WAITING


@pytest.mark.parametrize("path", DAGS, ids=lambda path: path.name)
def test_dag_imports_airflow_and_the_standard_library_only(path: Path) -> None:
    """The scheduler's environment has nothing else but the shared file beside them."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("a relative import" if node.level else str(node.module).partition(".")[0])
    known = {"airflow", "understudy_tasks", "kubernetes"}  # the last comes with the provider, and is for pods only
    assert imported - known - sys.stdlib_module_names == set()


@pytest.mark.parametrize("path", DAGS, ids=lambda path: path.name)
def test_commands_run_by_the_shared_scripts_only(path: Path) -> None:
    """No other text is given to a shell, and none of these scripts is a template."""
    given = {
        keyword.arg
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in ("bash_command", "cmds")
    }
    assert given == ({"bash_command", "cmds"} if path.name == "understudy_tasks.py" else set())
    assert [name for name, text in SCRIPTS.items() for mark in ("{{", "{%", "{#") if mark in text] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_log_of_a_task_shows_no_value_that_was_set(name: str, tmp_path: Path) -> None:
    """A URI with a password in an override reaches the command, which refuses it, and not the log."""
    command = tmp_path / "understudy"
    command.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho "{{}}"\n')
    command.chmod(0o755)
    overrides = "tracking.uri=http://u:SECRET@h\nseed=1"
    ended = run_script(SCRIPTS[name], CALL_EXECUTABLE=str(command), CALL_RUN="r", CALL_OVERRIDES=overrides)

    assert "SECRET" not in ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[0].endswith("--run=r --set=tracking.uri=... --set=seed=... -- /c.yaml")
    called = (tmp_path / "called").read_text().strip()
    assert called == "stage pair --store=/s --run=r --set=tracking.uri=http://u:SECRET@h --set=seed=1 -- /c.yaml"


def test_the_log_of_a_task_shows_no_secret_of_the_environment(tmp_path: Path) -> None:
    """A word may hold one: Kubernetes and Airflow put variables into values. The command is called with what it was given."""
    command = tmp_path / "understudy"
    command.write_text('#!/bin/sh\necho "$@" > "$0.called"\n')
    command.chmod(0o755)
    ended = run_script(
        TASKS.CALL,
        CALL_EXECUTABLE=str(command),
        CALL_RUN="a b$*?c",
        MLFLOW_TRACKING_TOKEN="b$*?c",
        DB_PASSWORD="",
        A_KEY="r",
    )
    assert r"--run=a\ \[MLFLOW_TRACKING_TOKEN\] -- /c.yaml" in ended.stdout
    assert "--run=a b$*?c" in Path(f"{command}.called").read_text()


@pytest.mark.parametrize(
    "name", ["DB_PASS", "MYSQL_PWD", "OPENAI_APIKEY", "SLACK_WEBHOOK", "SENTRY_DSN", "GITHUB_PAT", "PROXY_AUTH"]
)
def test_names_of_secrets_that_people_use_are_masked(name: str, tmp_path: Path) -> None:
    """As in what the command prints (tests/unit/escaping/test_secrets.py)."""
    ended = run_script(TASKS.CALL, CALL_EXECUTABLE="/bin/true", CALL_RUN="x-hunter2-y", **{name: "hunter2"})
    assert f"--run=x-\\[{name}\\]-y" in ended.stdout


def test_the_first_task_says_that_others_will_make_shards(tmp_path: Path) -> None:
    """So a config that cannot be made in shards is refused before anything is paid."""
    command = tmp_path / "understudy"
    command.write_text('#!/bin/sh\necho "called $@"\n')
    command.chmod(0o755)
    ended = run_script(TASKS.CALL, CALL_EXECUTABLE=str(command), CALL_RUN="r", CALL_IN_SHARDS="1")
    assert "called stage pair --store=/s --run=r --in-shards -- /c.yaml" == ended.stdout.splitlines()[-1]
    text = DAGS[0].with_name("draft_retraining.py").read_text(encoding="utf-8")
    assert 'return {"CALL_IN_SHARDS": "1"} if pair.shards and stage == STAGES[0] else {}' in text


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (3, 0), (1, 1), (2, 2), (100, 100)])
def test_an_answer_is_the_last_line(code: int, ends: int, tmp_path: Path) -> None:
    """JSON of several lines becomes one; exit codes other than 0 and 3 are failures."""
    command = tmp_path / "understudy"
    command.write_text(f'#!/bin/sh\nprintf \'{{\\n "text": "it\'"\'"\'s"\\n}}\\n\'\nexit {code}\n')
    command.chmod(0o755)
    ended = run_script(TASKS.ASK, CALL_EXECUTABLE=str(command))

    assert ended.returncode == ends
    if ends == 0:
        assert json.loads(ended.stdout.splitlines()[-1]) == {"code": code, "said": {"text": "it's"}}
