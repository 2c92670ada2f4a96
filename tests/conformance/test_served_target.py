"""A target served by a real vLLM against the same target loaded in this process: the same tokens, log p, figures and decision.

Chance of a false alarm with fresh samples: the figures at temperature 1 are compared at 4 standard errors, so below 1 in 10,000.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.speculation.settings import GREEDY, Sampling
from tests.benchmarks.figures import UNDERSTUDY
from tests.conformance.engines import Engine
from tests.conformance.servers import Server
from tests.conformance.subject import Subject

PROMPTS = 240
NEAR_TIE = 2e-5
FLAGS = ("--max-logprobs", "128", "--logprobs-mode", "processed_logprobs")


@pytest.fixture(scope="module")
def server(vllm: Engine, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target behind vLLM, which does not speculate, with the flags that docs/servers.md names."""
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    running = Server(vllm.interpreter, subject.target, FLAGS, log).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


def _config(subject: Subject, server: Server | None, **changes: Any) -> dict[str, Any]:
    """The quickstart's settings on the pair's directories. Without a server the target is loaded in the process."""
    target: dict[str, Any] = {"source": str(subject.target), "dtype": "float32"}
    generate: dict[str, Any] = {"max_new_tokens": 64}
    if server is not None:
        target = {"source": "server", "tokenizer": str(subject.tokenizer), "revision": "v1", "dtype": "float32"}
        generate |= {"engine": "server", "server": {"endpoints": [server.url]}}
    pair = subject.target.parent
    return {
        "name": "served",
        "pair": {"target": target, "draft": {"source": str(pair / "draft")}},
        "corpus": {
            "sources": [{"path": str(pair / "prompts.jsonl"), "limit": PROMPTS}],
            "chat_template": False,
            "splits": {"train": 0.3, "dev": 0.1, "examination": 0.6},
        },
        "generate": generate,
        "distill": {
            "optimizer": "muon",
            "max_steps": 40,
            "learning_rate": 3e-3,
            "evaluate_every": 20,
            "save_every": 40,
        },
        "quantize": {"variants": []},
        "gate": {"min_prompts_per_domain": 10},
        "promote": {"target_name": "quickstart"},
        **changes,
    }


def _run(place: Path, name: str, config: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(UNDERSTUDY), "run", str(file), "--store", str(place / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _artifact(place: Path, name: str, job: str) -> Path:
    (record,) = (json.loads(path.read_text()) for path in (place / name / "runs").glob("*/run.json"))
    entry = record["jobs"][job]
    return place / name / "artifacts" / f"{entry['stage']}-{entry['key']}"


@pytest.fixture(scope="module")
def both(subject: Subject, server: Server, place: Path) -> None:
    """One run by the server and one in the process, up to the examination."""
    for name, served in (("by-server", server), ("in-process", None)):
        ended = _run(place, name, _config(subject, served), "--until", "evaluate")
        assert 0 == ended.returncode, ended.stderr


def _completions(place: Path, name: str, sampling: Sampling) -> dict[str, StoredCompletion]:
    return {item.id: item for item in read_completions(_artifact(place, name, "generate"), sampling=sampling)}


@torch.inference_mode()
def _logits(subject: Subject, prompt: Any, tokens: Any) -> torch.Tensor:
    """(N, V): the logits that predict each of the N tokens."""
    ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
    logits: torch.Tensor = subject.target_model(ids).logits[0, len(prompt) - 1 : -1].double()
    return logits


def test_greedy_completions_are_the_same(subject: Subject, both: None, place: Path) -> None:
    """Token ids at temperature 0 are identical up to near-ties, which are listed."""
    here, there = (_completions(place, name, GREEDY) for name in ("in-process", "by-server"))
    assert list(here) == list(there)
    ties = []
    for name, one in here.items():
        other = there[name]
        count = min(len(one.tokens), len(other.tokens))
        different = np.flatnonzero(one.tokens[:count] != other.tokens[:count])
        if not len(different):
            assert (one.length, one.stopped) == (other.length, other.stopped)
            continue
        first = int(different[0])
        logits_V = _logits(subject, one.prompt, one.tokens)[first]
        gap = abs(float(logits_V[int(one.tokens[first])] - logits_V[int(other.tokens[first])]))
        ties.append((name, first, gap))
        assert gap < NEAR_TIE, ties
    print(f"{len(here)} greedy completions, near-ties: {ties}")


def test_log_p_is_that_of_the_process(subject: Subject, both: None, place: Path) -> None:
    """log p of sampled completions is within 1e-4 of the target's own pass, and the completions are samples of the target.

    The total of log p + entropy over a completion has mean 0 for samples of the target; it is compared at 4 standard errors.
    """
    largest, surprises = 0.0, []
    for item in _completions(place, "by-server", Sampling()).values():
        log_p_NV = _logits(subject, item.prompt, item.tokens).log_softmax(-1)
        log_p_N = log_p_NV.gather(1, torch.from_numpy(item.tokens.astype(np.int64)).unsqueeze(1)).squeeze(1)
        largest = max(largest, float((log_p_N - torch.from_numpy(item.log_p.copy())).abs().max()))
        surprises.append(float((log_p_N - (log_p_NV.exp() * log_p_NV).sum(-1)).sum()))
    error = float(np.std(surprises) / len(surprises) ** 0.5)
    print(
        f"{len(surprises)} completions, largest difference of log p {largest:.1e}, log p + entropy {np.mean(surprises):+.4f}"
    )
    assert largest < 1e-4
    assert abs(float(np.mean(surprises))) < 4 * error


def test_examinations_agree(both: None, place: Path) -> None:
    """At temperature 0 figures are equal to 4 digits; at temperature 1, where tokens are drawn anew, within 4 standard errors."""
    found = {}
    for name in ("in-process", "by-server"):
        found[name] = json.loads((_artifact(place, name, "evaluate/base") / "acceptance.json").read_text())
        assert found[name]["crosscheck"]["agrees"], found[name]["crosscheck"]
    here, there = found["in-process"], found["by-server"]
    for gamma in ("1", "5"):
        one, other = (side["greedy"]["tokens_per_target_call"][gamma]["value"] for side in (here, there))
        assert one == pytest.approx(other, abs=5e-5)
    assert here["greedy"]["acceptance_rate"]["value"] == pytest.approx(
        there["greedy"]["acceptance_rate"]["value"], abs=5e-5
    )
    one, other = (side["headline"]["acceptance_rate"] for side in (here, there))
    error = ((one["high"] - one["low"]) ** 2 + (other["high"] - other["low"]) ** 2) ** 0.5 / (2 * 1.96)
    print(f"acceptance at temperature 1: in process {one['value']:.4f}, by server {other['value']:.4f}")
    assert abs(one["value"] - other["value"]) < 4 * error


@pytest.mark.parametrize(
    ("flags", "sampling", "expected"),
    [
        ((), {"temperature": 1.0}, "start the server with --max-logprobs 128"),
        (("--max-logprobs", "128"), {"temperature": 0.7}, "start it with --logprobs-mode processed_logprobs"),
    ],
    ids=["max-logprobs", "logprobs-mode"],
)
def test_missing_flags_are_named(
    vllm: Engine, subject: Subject, tmp_path: Path, flags: tuple[str, ...], sampling: dict[str, float], expected: str
) -> None:
    """A server without the flags that a config needs is refused at the pair stage, in one line that names the flag."""
    server = Server(vllm.interpreter, subject.target, flags, tmp_path / "vllm.log").start()
    try:
        config = _config(subject, server, sampling=sampling)
        config["pair"]["generation_config"] = "ignore"
        ended = _run(tmp_path, "refused", config)
    finally:
        server.stop()
    assert 2 == ended.returncode, ended.stderr
    assert expected in ended.stderr.splitlines()[-1]


def test_whole_loop_with_two_endpoints_one_of_them_killed(
    vllm: Engine, subject: Subject, server: Server, place: Path, tmp_path: Path
) -> None:
    """One of two endpoints is killed while completions are generated and started again; the run goes on with the other one and
    ends with a champion, and every prompt has its completions once."""
    second = Server(vllm.interpreter, subject.target, FLAGS, tmp_path / "second.log").start()
    config = _config(subject, server, name="two")
    config["generate"]["server"]["endpoints"] = [server.url, second.url]
    config["corpus"]["sources"][0]["limit"] = 2 * PROMPTS
    work = place / "two" / "work"
    seen = list[str]()

    def kill_and_restart() -> None:
        while not list(work.glob("generate-*/*.journal")):
            time.sleep(0.1)
        time.sleep(10)
        seen.append("killed")
        second.stop(signal.SIGKILL)
        second.start()
        seen.append("started again")

    thread = threading.Thread(target=kill_and_restart)
    thread.start()
    try:
        ended = _run(place, "two", config)
        thread.join()
    finally:
        second.stop()
    print(ended.stderr)
    assert ["killed", "started again"] == seen
    assert 0 == ended.returncode, ended.stderr
    assert "promoted, quickstart-draft version 1" in ended.stdout
    assert f"{second.url}: " in ended.stderr  # that it was lost was said
    items = list(read_completions(_artifact(place, "two", "generate")))
    asked = [(item.id, item.sampling) for item in items]
    assert len(asked) == len(set(asked))
