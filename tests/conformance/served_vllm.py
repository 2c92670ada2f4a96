"""vLLM as a server: started by the launch script of an export, asked for token ids."""

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.servers import VLLM_ENVIRONMENT, LocalServer, counters, post


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
        choice = json.loads(post(f"{self.url}/v1/completions", body))["choices"][0]
        return [int(token) for token in choice["token_ids"]]

    def counters(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The counters called `names` in expected.json."""
        return counters(self.url, names)


@contextmanager
def served(
    directory: Path, interpreter: Path, log: Path, *arguments: str, environment: Mapping[str, str] = {}
) -> Iterator[ServedVllm]:
    """The server that `launch.sh` of an export starts, on a free port; ended afterwards. `environment`: variables of it, beside
    ours. AssertionError with the end of its log if it does not start."""
    own = VLLM_ENVIRONMENT | {"PYTHON": str(interpreter), **environment}
    with LocalServer([directory / "launch.sh", "--enforce-eager", *arguments], log, own) as server:
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        yield ServedVllm(server.url, model)
