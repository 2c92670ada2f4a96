"""llama-server on loopback, as `make llama-server` builds it."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.conformance.servers import LocalServer, post

# The cache of keys and values is in float16 by default, which is not what is examined.
FP32 = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off")
FP32_DRAFT = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32")


def llama_server(command: Sequence[object], log: Path, **environment: str) -> LocalServer:
    """The server that `command` starts, on a free port, with four slots."""
    return LocalServer([*command, "--parallel", "4", "--threads", "1"], log, environment)


def complete(url: str, prompts: Sequence[Sequence[int]], max_tokens: int, at_once: int = 4) -> list[dict[str, Any]]:
    """Answers to greedy completions, in the order of the prompts."""
    settings = {"n_predict": max_tokens, "temperature": 0.0, "return_tokens": True, "cache_prompt": False}

    def one(prompt: Sequence[int]) -> dict[str, Any]:
        return dict(json.loads(post(f"{url}/completion", {"prompt": [int(token) for token in prompt], **settings})))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, prompts))
