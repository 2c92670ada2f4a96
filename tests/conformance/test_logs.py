"""A reasoning model with tools behind a real vLLM with parsers, as docs/logs.md serves it: clients ask, the middleware logs, and
`init`, `plan` and `run` make a draft from the log."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.generation.completion_store import read_completions
from pipeline.speculation.settings import Sampling
from tests.benchmarks.figures import ROOT, UNDERSTUDY
from tests.conformance import reasoning_pair
from tests.conformance.engines import Engine
from tests.conformance.logged_traffic import request, send
from tests.conformance.servers import Server

_REQUESTS = 320
_ARGUMENTS = (
    *("--max-logprobs", "128", "--middleware", "request_log.LoggedRequests"),
    *("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pair")
    reasoning_pair.make(place)
    return place


@pytest.fixture(scope="module")
def server(vllm: Engine, pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target behind vLLM; what it logs is in `pair / "log"`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REQUEST_LOG", str(pair / "log"))
        environment.setenv("PYTHONPATH", str(ROOT / "docs" / "examples"))
        log = tmp_path_factory.mktemp("server") / "vllm.log"
        running = Server(vllm.interpreter, pair / "target", _ARGUMENTS, log)
        running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def rows(server: Server, pair: Path) -> list[dict[str, Any]]:
    """What the middleware wrote."""
    send(server.url, [request(number) for number in range(10_000, 10_000 + _REQUESTS)])
    files = sorted((pair / "log").glob("*requests-*.jsonl"), key=lambda path: path.name.lstrip("."))
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def _understudy(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [str(UNDERSTUDY), *arguments], capture_output=True, text=True, check=False, cwd=place, env=environment
    )
    assert 0 == ended.returncode, ended.stderr
    return ended


def _config(place: Path, pair: Path, server: Server, rows: list[dict[str, Any]]) -> None:
    """What `init` writes for the log, with its answers in use."""
    (place / "log").mkdir()
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (place / "log" / "requests.jsonl").write_text("".join(lines), encoding="utf-8")
    target = ("--target", server.url, "--tokenizer", str(pair / "target"))
    written = _understudy(place, "init", *target, "--draft", str(pair / "draft"), "--prompts", "log").stdout
    config = yaml.safe_load(written)
    (source,) = config["corpus"]["sources"]
    assert "response" == source["answer_field"]
    source["use_answers"] = True
    config["corpus"]["near_duplicate_threshold"] = 1.0  # the sentences are few
    config["generate"]["max_new_tokens"] = 96
    config["distill"] |= {"max_steps": 40}
    config["quantize"] = {"variants": []}
    # Too few prompts for a verdict on each segment, and on those with thinking switched off.
    config["gate"] |= {"min_prompts_per_domain": 10, "segment_margin": None, "min_domain_share": 0.3}
    (place / "my.yaml").write_text(yaml.safe_dump(config))


def _figures(place: Path) -> dict[str, float]:
    (artifact,) = (place / ".understudy" / "artifacts").glob("generate-*")
    return dict(json.loads((artifact / "manifest.json").read_text())["figures"])


def test_a_log_with_ids_makes_a_draft(server: Server, pair: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Streams and tool calls included: the stored completions are what vLLM sampled, token by token."""
    assert _REQUESTS == len(rows)
    _config(tmp_path, pair, server, rows)
    _understudy(tmp_path, "plan", "my.yaml")
    said = _understudy(tmp_path, "run", "my.yaml").stderr
    logged = defaultdict[tuple[int, ...], list[list[int]]](list)  # some prompts were asked more than once
    for row in rows:
        logged[tuple(row["response"]["prompt_token_ids"])].append(row["response"]["choices"][0]["token_ids"])
    (artifact,) = (tmp_path / ".understudy" / "artifacts").glob("generate-*")
    stored = list(read_completions(artifact, sampling=Sampling()))
    same = sum(item.tokens[: item.length].tolist() in logged[tuple(item.prompt.tolist())] for item in stored)
    print(same, len(stored), [line for line in said.splitlines() if "recorded" in line])
    assert same >= _figures(tmp_path)["recorded_answers"] > 0.75 * len(stored)
    assert "tool_call" in said
    assert "thinking" in said


def test_a_log_without_ids_passes_the_test(
    server: Server, pair: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The template writes again what vLLM's parsers took apart."""
    for row in rows:
        row["response"] = {**row["response"], "prompt_token_ids": None}
        row["response"]["choices"] = [{**choice, "token_ids": None} for choice in row["response"]["choices"]]
    thinking = [row for row in rows if "chat_template_kwargs" not in row]
    _config(tmp_path, pair, server, thinking)
    _understudy(tmp_path, "run", "my.yaml", "--until", "generate")
    stored = list(
        read_completions(next((tmp_path / ".understudy" / "artifacts").glob("generate-*")), sampling=Sampling())
    )
    assert _figures(tmp_path)["recorded_answers"] > 0.7 * len(stored)
