"""Servers on loopback for as long as a test needs them: how they start and end, and what they are asked over HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_STARTS_WITHIN, _ANSWERS_WITHIN = 240.0, 300.0  # seconds
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class LocalServer:
    """What `command` starts, with a host and a port behind it. Started again it has the same URL."""

    def __init__(
        self, command: Sequence[object], log: Path, environment: Mapping[str, str] = {}, port: int | None = None
    ) -> None:
        port = port or free_port()
        self.url, self._log, self._environment = f"http://127.0.0.1:{port}", log, dict(environment)
        self._command = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Until it answers. AssertionError with the end of its log if it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + _STARTS_WITHIN
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        self.stop()
        raise AssertionError(f"the server did not start:\n{self._log.read_text(errors='replace')[-4000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and its workers."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(30)
        self._process = None


class Server(LocalServer):
    """`python -m vllm.entrypoints.openai.api_server`, which is how vLLM's CPU build serves, in its own environment."""

    def __init__(self, python: Path, model: Path, arguments: Sequence[str], log: Path, port: int | None = None) -> None:
        command = [
            python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            model,
            "--served-model-name",
            "target",
        ]
        more = ("--dtype", "float32", "--enforce-eager", *arguments)
        super().__init__([*command, *more], log, VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "WARNING"}, port)


def post(url: str, body: Mapping[str, Any], **headers: str) -> bytes:
    """The answer to a request with a JSON body."""
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=_ANSWERS_WITHIN) as answer:
        return bytes(answer.read())


def counters(url: str, names: Mapping[str, str]) -> dict[str, Any]:
    """The counters called `names` in expected.json: whole numbers, `per_position` as a list."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, Any] = {}
    for what in ("drafts", "draft_tokens", "accepted", "per_position"):
        series = [line for line in lines if re.match(re.escape(names[what]) + r"[ {]", line)]
        values = [round(float(line.rsplit(" ", 1)[1])) for line in sorted(series, key=_position)]
        found[what] = values if what == "per_position" else sum(values)
    return found


def _position(series: str) -> int:
    found = re.search(r'position="(\d+)"', series)
    return int(found[1]) if found else 0


def difference(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted in between."""
    return {
        name: [a - b for a, b in zip(value, before[name], strict=True)]
        if isinstance(value, list)
        else value - before[name]
        for name, value in after.items()
    }
