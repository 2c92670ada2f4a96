"""A log of a real vLLM becomes the completions of a run: what vLLM answered, row by row, as a gateway would write it down."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.generation.completion_store import read_completions
from pipeline.models.loading import load_tokenizer
from pipeline.speculation.settings import Sampling
from tests.conformance.engines import Engine
from tests.conformance.served_runs import artifact, run
from tests.conformance.servers import Server, post
from tests.conformance.subject import Subject

ROWS, NEW = 160, 32


@pytest.fixture(scope="module")
def server(vllm: Engine, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target behind vLLM."""
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with Server(vllm.interpreter, subject.target, ("--max-logprobs", "128"), log) as running:
        yield running


@pytest.fixture(scope="module")
def rows(subject: Subject, server: Server) -> list[dict[str, Any]]:
    """What clients sent and what vLLM answered, token ids included."""
    texts = [json.loads(line) for line in (subject.target.parent / "prompts.jsonl").read_text().splitlines()][:ROWS]

    def ask(row: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": "target",
            "prompt": row["prompt"],
            "max_tokens": NEW,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
        }
        body |= {"return_token_ids": True, "skip_special_tokens": False}
        return row | {"response": json.loads(post(f"{server.url}/v1/completions", body)), "temperature": 1.0}

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(ask, texts))


def _generated(subject: Subject, server: Server, rows: list[dict[str, Any]], place: Path) -> tuple[str, Path]:
    """Standard error of the run and its completions."""
    ended = _run(subject, server, rows, place)
    assert 0 == ended.returncode, ended.stderr
    return ended.stderr, artifact(place, "logged", "generate")


def _run(subject: Subject, server: Server, rows: list[dict[str, Any]], place: Path) -> subprocess.CompletedProcess[str]:
    (place / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"path": "log.jsonl", "use_answers": True, "answer_field": "response"}
    target = {"source": "server", "tokenizer": str(subject.tokenizer), "revision": "v1", "dtype": "float32"}
    config = {
        "name": "logged",
        "pair": {"target": target, "draft": {"source": str(subject.target.parent / "draft")}},
        "corpus": {"sources": [source], "chat_template": False},
        "generate": {"engine": "server", "server": {"endpoints": [server.url]}, "max_new_tokens": NEW},
        "gate": {"min_prompts_per_domain": 10},
        "promote": {"target_name": "logged"},
    }
    return run(place, "logged", config, "--until", "generate")


def _recorded(generated: Path) -> float:
    return float(json.loads((generated / "manifest.json").read_text())["figures"]["recorded_answers"])


def test_token_ids_of_a_log_are_its_completions(
    subject: Subject, server: Server, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Every sampled completion is the one that vLLM answered, and log p is that of the server."""
    _, generated = _generated(subject, server, rows, tmp_path)
    logged = {
        tuple(row["response"]["choices"][0]["prompt_token_ids"]): row["response"]["choices"][0]["token_ids"]
        for row in rows
    }
    stored = list(read_completions(generated, sampling=Sampling()))
    assert len(stored) == _recorded(generated)
    for item in stored:
        assert logged[tuple(item.prompt.tolist())] == item.tokens[: item.length].tolist()
        assert (item.log_p < 0).any()


def test_texts_of_a_log_are_nearly_its_completions(
    subject: Subject, server: Server, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Without token ids, texts are tokenised again: about half have exactly the tokens that this target, a weak one, wrote."""
    tokenizer = load_tokenizer(subject.tokenizer)
    without = []
    for row in rows:
        choice = {key: value for key, value in row["response"]["choices"][0].items() if not key.endswith("token_ids")}
        without.append(row | {"response": {"choices": [choice]}})
    said, generated = _generated(subject, server, without, tmp_path)
    same = 0
    for row in rows:
        ids, text = row["response"]["choices"][0]["token_ids"], row["response"]["choices"][0]["text"]
        prompt = row["response"]["choices"][0]["prompt_token_ids"]
        again = tokenizer(row["prompt"] + text)["input_ids"][len(prompt) :]
        same += again[: len(ids) - 1] == ids[: len(ids) - 1]
    print(said, f"{same} of {len(rows)} texts have the tokens that the target wrote")
    assert _recorded(generated) > 0.9 * len(list(read_completions(generated, sampling=Sampling())))
    assert same > 0.3 * len(rows)  # about half; 5 standard errors below


def test_answers_that_stand_beside_other_prompts_are_refused(
    subject: Subject, server: Server, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A log whose columns were joined wrongly: each answer has moved on by one row. Without the prompts' token ids only the
    statistics can tell."""
    answers = [
        {"choices": [{key: value for key, value in row["response"]["choices"][0].items() if key != "prompt_token_ids"}]}
        for row in rows
    ]
    moved = [row | {"response": answer} for row, answer in zip(rows, answers[1:] + answers[:1], strict=True)]
    ended = _run(subject, server, moved, tmp_path)
    print(ended.stderr.splitlines()[-1])
    assert (1, True) == (ended.returncode, "the recorded answers" in ended.stderr.splitlines()[-1])
