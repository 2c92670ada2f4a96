"""A real MLflow server on loopback, for the tests that need one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Place


class Server:
    """An `mlflow server` with its own database, on a free port; can be stopped and started again."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root, self.environment = root, environment
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        line = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        line += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.root}/server.db"]
        line += ["--artifacts-destination", str(self.root / "artifacts")]
        environment = (
            Place(self.root)
            .prepare()
            .environment(
                MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true", **self.environment
            )
        )
        with (self.root / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                line, cwd=self.root, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            except OSError:
                assert self._process.poll() is None, (self.root / "server.log").read_text()
                time.sleep(0.1)
        pytest.fail("the server does not answer")

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return dict(json.load(reply))

    def champion(self) -> str | None:
        model = self.call("registered-models/get?name=reference-draft")["registered_model"]
        return {entry["alias"]: entry["version"] for entry in model.get("aliases", [])}.get("champion")

    def run(self, run: str) -> dict[str, Any]:
        """The MLflow run of one run: name, status, tags, metrics, artifacts."""
        experiment = self.call("experiments/get-by-name?experiment_name=understudy")["experiment"]["experiment_id"]
        body = {"experiment_ids": [experiment], "filter": f"tags.`understudy.run` = '{run}'", "max_results": 100}
        (entry,) = self.call("runs/search", body)["runs"]
        listed = self.call(f"artifacts/list?run_id={entry['info']['run_id']}").get("files", [])
        return {
            "name": entry["info"]["run_name"],
            "status": entry["info"]["status"],
            "tags": {tag["key"]: tag["value"] for tag in entry["data"]["tags"]},
            "metrics": {metric["key"]: metric["value"] for metric in entry["data"].get("metrics", [])},
            "artifacts": sorted(item["path"] for item in listed),
        }
