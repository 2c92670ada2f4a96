"""A real Airflow: API server, scheduler and DAG processor in processes of their own, asked over HTTP."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

_SECONDS = 180.0  # until something is given up; nothing is asserted about time


@dataclass
class Service:
    """The API of a running Airflow."""

    port: int
    logs: Path
    _token: str = field(default="", repr=False)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def log_in(self) -> bool:
        self._token = self.ask("GET", "/auth/token")["access_token"]
        return True

    def dag_ids(self) -> list[str]:
        return [dag["dag_id"] for dag in self.ask("GET", "/api/v2/dags")["dags"]]

    def update(self, asset: str) -> None:
        """What an update from outside does, such as by the release of a new target."""
        (found,) = (one for one in self.ask("GET", "/api/v2/assets")["assets"] if one["name"] == asset)
        self.ask("POST", "/api/v2/assets/events", {"asset_id": found["id"], "extra": {}})

    def trigger(self, dag_id: str) -> str:
        """Start a run by hand; its id."""
        return str(self.ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"])

    def runs(self, dag_id: str) -> dict[str, str]:
        """State by run id, in the order of their start."""
        found = self.ask("GET", f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str]:
        found = self.ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def approve(self, dag_id: str, run_id: str, task_id: str) -> None:
        """What a person does under Required Actions."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/-1/hitlDetails"
        self.ask("PATCH", path, {"chosen_options": ["Approve"]})

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of `condition`; the logs of Airflow if there is none in time."""
        ends = time.monotonic() + _SECONDS
        while time.monotonic() < ends:
            try:
                if value := condition():
                    return value
            except urllib.error.URLError:
                pass  # not up yet, or no such run yet
            time.sleep(0.3)
        said = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-3000:]}" for log in self.logs.glob("*.log"))
        raise AssertionError(f"{what} did not happen within {_SECONDS:g} s\n{said}")

    def ended(self, dag_id: str, run_id: str) -> str:
        """The state of a run once it has ended."""
        return str(
            self.wait(lambda: (s := self.runs(dag_id).get(run_id)) in ("success", "failed") and s, f"{dag_id} {run_id}")
        )


@contextmanager
def running(
    home: Path, dags: Path, database: Path, environment: Mapping[str, str], python: str = sys.executable
) -> Iterator[Service]:
    """Airflow with these DAG files, until the end of the block. `database`: a migrated one, which is copied. `python`: of
    Airflow's environment."""
    home.mkdir()
    shutil.copy(database, home / "airflow.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-this-test-and-long-enough-for-a-hash" * 2,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        **environment,
    }
    commands = (["api-server", "--host", "127.0.0.1"], ["scheduler"], ["dag-processor"])
    processes = []
    try:
        for command in commands:
            with (home / f"{command[0]}.log").open("wb") as log:
                started = [python, "-m", "airflow", *command]
                processes.append(
                    subprocess.Popen(
                        started, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True
                    )
                )
        service = Service(port, home)
        service.wait(service.log_in, "the start of Airflow")
        yield service
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
