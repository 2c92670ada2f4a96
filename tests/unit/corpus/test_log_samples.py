"""Samples of logs (tests/fixtures/logs) through the corpus reader: which answers are used, why others are not, and the tokens."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_store import StoredAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.first_pass import RowCounts
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import parse_row
from pipeline.models.loading import load_tokenizer
from tests.unit.corpus.kept_rows import read_source

SAMPLES = Path(__file__).parents[2] / "fixtures" / "logs"
SOURCE = PromptSource(path="log", use_answers=True, answer_field="response")
_IDS = ("token_ids", "response_token_ids", "sglext", "__verbose")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(SAMPLES / "tokenizer"), None, {})


def _read(path: Path, renderer: Renderer, place: Path) -> tuple[RowCounts, list[StoredAnswer]]:
    kept, counts = read_source(SOURCE.model_copy(update={"path": str(path)}), renderer, place / "rejects.jsonl")
    return counts, [row.answer for row in kept if row.answer is not None]


@pytest.mark.parametrize(
    ("name", "with_ids", "texts", "unused"),
    [
        ("vllm", 17, 0, {"a request with stop": 1}),
        ("vllm_speculating", 3, 0, {}),
        ("litellm", 6, 5, {"a request with stop": 1}),
        ("sglang", 6, 0, {}),
        ("llama_cpp", 8, 7, {"a request with stop": 1}),
    ],
)
def test_the_answers_of_each_sample_are_used(
    renderer: Renderer, tmp_path: Path, name: str, with_ids: int, texts: int, unused: dict[str, int]
) -> None:
    """Those with arguments of the template too, whose prompts then have the ids of the log; not those with a stop string."""
    counts, answers = _read(SAMPLES / f"{name}.jsonl", renderer, tmp_path)
    assert Counter(unused) == counts.unused_answers
    assert (with_ids, texts) == (sum(one.exact for one in answers), sum(not one.exact for one in answers))
    assert counts.rows == counts.accepted == len(answers) + sum(unused.values())


@pytest.mark.parametrize("name", ["vllm", "vllm_speculating", "litellm", "sglang", "llama_cpp"])
def test_without_ids_the_template_writes_the_same_tokens(renderer: Renderer, tmp_path: Path, name: str) -> None:
    """Thinking, tool calls and answers that the server parsed out of the text; a cut answer lacks its last tokens."""
    rows = [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    compared = Counter[bool]()
    for row in rows:
        if "stop" in row or (row.get("chat_template_kwargs") or {}).get("enable_thinking") is False:
            continue
        logged, rebuilt = _answer(renderer, row), _answer(renderer, _without_ids(row))
        if not logged.exact:
            continue
        compared["tool_calls" in _message(row)] += 1
        length = len(rebuilt.tokens) if rebuilt.cut else len(logged.tokens)
        assert logged.tokens[:length] == rebuilt.tokens[:length]
        assert logged.cut == rebuilt.cut
    assert all(compared[called] for called in (True, False)), compared


def _message(row: dict[str, Any]) -> dict[str, Any]:
    """Without null values."""
    message = row["response"]["choices"][0]["message"]
    return {name: value for name, value in message.items() if value}


def _answer(renderer: Renderer, row: dict[str, Any]) -> StoredAnswer:
    prompt = parse_row(row, SOURCE)
    (ids,) = renderer.token_ids([renderer.text(prompt)])
    return renderer.answer_ids(prompt, ids, parse_answer(row, SOURCE))


def _without_ids(row: dict[str, Any]) -> dict[str, Any]:
    row = json.loads(json.dumps(row))
    for part in (row["response"], *row["response"]["choices"]):
        for name in _IDS:
            part.pop(name, None)
    return row
