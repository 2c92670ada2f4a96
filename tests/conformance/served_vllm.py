"""vLLM as a server: started by the launch script of an export, asked over HTTP, its counters read from /metrics."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
_START_SECONDS, _ANSWER_SECONDS = 240, 300
_SERIES = re.compile(r"^(?P<name>[a-z_:]+)\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServedVllm:
    """A running server."""

    url: str
    model: str

    def complete(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float = 0.0, at_once: int = 8
    ) -> list[list[int]]:
        """Completions as token ids, in the order of the prompts."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, max_tokens, temperature), prompts))

    def _complete(self, prompt: Sequence[int], max_tokens: int, temperature: float) -> list[int]:
        body = {
            "model": self.model,
            "prompt": [int(token) for token in prompt],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "return_token_ids": True,
            "add_special_tokens": False,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            choice = json.load(answer)["choices"][0]
        return [int(token) for token in choice["token_ids"]]

    def counters(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The counters called `names` in expected.json: whole numbers, `per_position` as a list."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found: dict[str, Any] = {"per_position": {}}
        for series in _SERIES.finditer(text):
            for what in ("drafts", "draft_tokens", "accepted", "per_position"):
                if series["name"] != names[what]:
                    continue
                if what == "per_position":
                    position = int(re.search(r'position="(\d+)"', series["labels"])[1])  # type: ignore[index]
                    found[what][position] = int(float(series["value"]))
                else:
                    found[what] = int(float(series["value"]))
        found["per_position"] = [found["per_position"][position] for position in sorted(found["per_position"])]
        return found


def difference(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted in between."""
    return {
        name: [a - b for a, b in zip(value, before[name], strict=True)]
        if isinstance(value, list)
        else value - before[name]
        for name, value in after.items()
    }


@contextmanager
def served(
    directory: Path, interpreter: Path, log: Path, *arguments: str, environment: Mapping[str, str] = {}
) -> Iterator[ServedVllm]:
    """The server that `launch.sh` of an export starts, on a free port; ended afterwards. `environment`: variables of it, beside
    ours. AssertionError with the end of its log if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(directory / "launch.sh"), "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *arguments]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=os.environ | _ENVIRONMENT | {"PYTHON": str(interpreter), **environment},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(url, process, log)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        yield ServedVllm(url, model)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(url: str, process: subprocess.Popen[Any], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError(f"the server did not start within {_START_SECONDS} s:\n{log.read_text()[-4000:]}")
