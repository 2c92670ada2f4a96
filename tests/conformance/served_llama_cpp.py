"""llama-server on loopback, as `make llama-server` builds it."""

import json
import os
import re
import signal
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

from tests.conformance.servers import free_port

# The cache of keys and values is in float16 by default, which is not what is examined.
FP32 = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off")
FP32_DRAFT = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32")
_START_SECONDS, _ANSWER_SECONDS = 60, 300


@dataclass(frozen=True)
class ServedLlamaCpp:
    """A running server."""

    url: str

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int, at_once: int = 4) -> list[dict[str, Any]]:
        """Answers to greedy completions, in the order of the prompts."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, max_tokens), prompts))

    def _complete(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        body = {
            "prompt": [int(token) for token in prompt],
            "n_predict": max_tokens,
            "temperature": 0.0,
            "return_tokens": True,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def counters(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The counters called `names` in expected.json: whole numbers, `per_position` as a list."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, Any] = {}
        for what in ("drafts", "draft_tokens", "accepted", "per_position"):
            series = [line for line in lines if re.match(re.escape(names[what]) + r"[ {]", line)]
            values = [round(float(line.rsplit(" ", 1)[1])) for line in series]
            found[what] = values if what == "per_position" else sum(values)
        return found


@contextmanager
def served(command: Sequence[object], log: Path, **environment: str) -> Iterator[ServedLlamaCpp]:
    """The server that `command` starts, on a free port, with four slots; ended afterwards. AssertionError with the end of its log
    if it does not start."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    more = ("--host", "127.0.0.1", "--port", str(port), "--parallel", "4", "--threads", "1")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*map(str, command), *more],
            env=os.environ | environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(url, process, log)
        yield ServedLlamaCpp(url)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait(url: str, process: subprocess.Popen[Any], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the server did not start within {_START_SECONDS} s:\n{log.read_text()[-4000:]}")
