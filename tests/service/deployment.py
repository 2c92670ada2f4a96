"""A whole deployment on this machine: MLflow's server, vLLM behind the link of the export, Airflow with Understudy's DAGs, and
the traffic. Everything is in one directory, and ended by its process id."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import yaml

from pipeline.canary.verified import VERIFICATION
from pipeline.config.loading import load_config
from pipeline.registry.history import Change
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from pipeline.watch.state import STATE
from tests.conformance.servers import VLLM_ENVIRONMENT
from tests.dags.service import Service, running
from tests.e2e.mlflow_server import Server
from tests.service import engine
from tests.service.traffic import KINDS, TOKENS, Traffic

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
NAME = "reference-draft"
WATCH, RETRAINING = "acceptance_watch.service", "draft_retraining.service"
COOLDOWN_HOURS = 0.15
_SECONDS = 1800.0  # until something is given up
_FIRST_PROMPTS = 480


@dataclass
class Deployment:
    """What runs, and what it wrote down."""

    place: Path
    mlflow: Server
    airflow: Service
    traffic: Traffic

    @property
    def store(self) -> Store:
        return Store(self.place / "store")

    def record(self, run: str) -> dict[str, Any]:
        """What the store knows of a run."""
        return dict(json.loads((self.store.root / "runs" / run / "run.json").read_text()))

    def history(self) -> Sequence[Change]:
        """Who was champion, as `champion history` has it."""
        return registry_for(load_config(self.place / "config.yaml"), self.store).history()

    def starts(self) -> list[tuple[float, str]]:
        """When the engine was started, and with which directory of the export."""
        lines = (self.place / "starts.jsonl").read_text().splitlines()
        return [(found["time"], found["serves"]) for found in map(json.loads, lines)]

    def wrong_files_once(self, version: str) -> None:
        """At its next start the engine serves this version, whatever the link says."""
        (self.place / "wrong").write_text(str(self.place / "served" / version))

    def verdict(self) -> str:
        """What the watch found."""
        state = STATE.find(self.store, NAME)
        return "steady" if state is None else state.verdict

    def settle_down(self) -> None:
        """Wait until no drift is known and no retraining runs or is due."""
        self.wait(lambda: self.verdict() == "steady", "the end of the drift")
        self.wait(
            lambda: set(self.airflow.runs(RETRAINING).values()) <= {"success", "failed"}, "the end of retrainings"
        )

    def verified(self) -> Any:
        return VERIFICATION.find(self.store, NAME)

    def tasks(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        """Task instances of a run, as Airflow has them."""
        found = self.airflow.ask("GET", f"/api/v2/dags/{dag}/dagRuns/{quote(run)}/taskInstances")["task_instances"]
        return {task["task_id"]: task for task in found}

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = _SECONDS) -> Any:
        """The first true value of `condition`; AssertionError with the ends of the logs if there is none in time."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                if value := condition():
                    return value
            except urllib.error.URLError:
                pass  # a busy server, or no such run yet
            time.sleep(1)
        logs = [self.place / "engine.log", *(self.place / "airflow").glob("*.log")]
        raise AssertionError(
            f"{what} did not happen within {seconds:g} s\n"
            + "\n".join(f"{log}: {log.read_text(errors='replace')[-2000:]}" for log in logs if log.exists())
        )


@contextmanager
def deployed(place: Path, vllm: Path, airflow: Path) -> Iterator[Deployment]:
    """A first champion, trained on prose, in service. `vllm`, `airflow`: the interpreters of their environments."""
    with ExitStack() as stack:
        mlflow = Server(place / "mlflow")
        stack.callback(lambda: getattr(mlflow, "_process", None) and mlflow.kill())
        mlflow.start()
        port = _free_port()
        stack.callback(engine.stop, place)
        environment = _written(place, port, vllm, mlflow.uri)
        command = [str(place / "bin" / "understudy")]
        first = [*command, "run", f"--store={place / 'store'}", "--run=first", str(place / "config.yaml")]
        with (place / "first.log").open("wb") as log:
            subprocess.run(first, env=os.environ | environment, stdout=log, stderr=log, check=True)
        traffic = Traffic(f"http://127.0.0.1:{port}", "prose").start()
        stack.callback(traffic.stop)
        database = _migrated(place, airflow)
        settings = environment | {
            "UNDERSTUDY_PAIRS": str(place / "pairs.json"),
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port()),
        }
        dags = place / "dags"
        subprocess.run([*command, "dags", f"--out={dags / 'understudy'}"], env=os.environ | environment, check=True)
        service = stack.enter_context(running(place / "airflow", dags, database, settings, str(airflow)))
        yield Deployment(place, mlflow, service, traffic)


def _free_port() -> int:
    """Below the ports that the system gives to anybody, since the engine comes back to it after each restart."""
    while True:
        port = Random().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


def _written(place: Path, port: int, vllm: Path, tracking: str) -> dict[str, str]:
    """The files of an operator; the environment of the commands."""
    url, log, served = f"http://127.0.0.1:{port}", place / "log", place / "served"
    for directory in (log, place / "bin"):
        directory.mkdir()
    _write_first_prompts(log / "requests-first.jsonl")
    script = place / "bin" / "understudy"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/understudy_cli.py "$@"\n')
    script.chmod(0o755)
    (place / "engine.json").write_text(
        json.dumps(
            {
                "place": str(place),
                "served": str(served),
                "arguments": [
                    *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--served-model-name", "target"),
                    *("--per-request-spec-decode-metrics", "summary"),
                    *("--middleware", "minute_log.LoggedRequests"),
                ],
                "environment": VLLM_ENVIRONMENT
                | {
                    "PYTHON": str(vllm),
                    "TORCHDYNAMO_DISABLE": "1",  # log p of prompts is compiled otherwise, into a cache that processes share
                    "PYTHONPATH": f"{EXAMPLES}:{Path(__file__).parent}",
                    "REQUEST_LOG": str(log),
                },
            }
        )
    )
    restart = [sys.executable, str(Path(engine.__file__)), str(place / "engine.json")]
    replicas = {"seconds": 600, "replicas": [{"restart": restart, "health": f"{url}/health"}]}
    (place / "replicas.json").write_text(json.dumps(replicas))
    config = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())
    config["corpus"]["sources"] = [{"path": str(log)}]
    config["tracking"] = {"uri": tracking}
    config["promote"] = {
        "export": {"engine": "vllm", "out": str(served)},
        "notice": {"program": str(EXAMPLES / "reload_engine.py"), "timeout_seconds": 900},
    }
    config["watch"]["endpoints"] = [url]
    config["generate"]["max_new_tokens"] = TOKENS
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    pair = {
        "name": "service",
        "config": str(place / "config.yaml"),
        "store": str(place / "store"),
        "bin": str(script),
        "schedule": "none",
        "canary_schedule": "none",
        "watch_schedule": "* * * * *",
        "cooldown_hours": COOLDOWN_HOURS,
        "retry_hours": COOLDOWN_HOURS,
    }
    (place / "pairs.json").write_text(json.dumps([pair]))
    return {
        "REPLICAS": str(place / "replicas.json"),
        "STATE": str(place / "reloaded.json"),
        "OMP_NUM_THREADS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _write_first_prompts(path: Path) -> None:
    """What the log has before the first draft: prompts."""
    prompts, began = KINDS["prose"](Random(1)), time.time() - 3600
    rows = [{"prompt": next(prompts), "created": began + number} for number in range(_FIRST_PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _migrated(place: Path, airflow: Path) -> Path:
    """Airflow's tables."""
    made = place / "migrated"
    made.mkdir()
    settings = {
        "AIRFLOW_HOME": str(made),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{made}/airflow.db",
    }
    words = [str(airflow), "-m", "airflow", "db", "migrate"]
    subprocess.run(words, env=os.environ | settings, check=True, capture_output=True)
    return made / "airflow.db"
