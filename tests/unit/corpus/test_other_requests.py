"""Rows that ask for more than a text, or for something else, are no prompts; columns that only look so are columns."""

from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.rows import BadRow, parse_row

SOURCE = PromptSource(path="p", use_answers=True, answer_field="response", finish_reason="stop")


def _asked(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [_asked("<image>\nWhat is it?")], "images": ["a.png"]},
        {"prompt": "What is in <image>?", "image": {"bytes": b"x"}},
        {"prompt": "Write down <|audio|>", "audio": "a.wav"},
        {"messages": [_asked("What is it?", images=["aGk="])]},
        {"messages": [_asked("q"), {"role": "assistant", "content": "a", "audio": {"id": "x"}}, _asked("And?")]},
    ],
)
def test_a_prompt_with_an_image_or_a_sound_is_rejected(row: dict[str, Any]) -> None:
    """It is asked about what a text model does not get."""
    with pytest.raises(BadRow, match="content is not text"):
        parse_row(row, SOURCE)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Who painted it?", "image": "https://example.org/a.png"},
        {"messages": [_asked("<image> is a tag of which language?")], "images": []},
        {"prompt": "What does <image> mean?"},
        {"prompt": "q", "url": "https://example.org/blog/embeddings-explained"},
        {"prompt": "q", "url": "/v1/chat/completions", "path": "prompts/audio.txt", "call_type": "acompletion"},
        {"prompt": "q", "endpoint": "/openai/deployments/gpt/completions?api-version=1"},
    ],
)
def test_a_column_that_only_looks_so_is_a_column(row: dict[str, Any]) -> None:
    assert parse_row(row, SOURCE)


@pytest.mark.parametrize(
    "said",
    [
        {"url": "/v1/embeddings"},
        {"path": "https://api.example.org/openai/deployments/e/embeddings?api-version=1"},
        {"endpoint": "/v1/rerank"},
        {"uri": "/v1/audio/transcriptions"},
        {"call_type": "aembedding"},
    ],
)
def test_a_request_for_no_text_is_rejected(said: dict[str, str]) -> None:
    with pytest.raises(BadRow, match="request for no text"):
        parse_row({"input": "a passage", "prompt": "a passage", **said}, SOURCE)


@pytest.mark.parametrize(
    "end", [{"content": "The", "prefix": True}, {"content": "The"}, {"content": "The", "partial": True}]
)
def test_an_answer_that_goes_on_is_not_used(end: dict[str, Any]) -> None:
    """Of a request that ends with the beginning of its answer, engines write different prompts. It is a prompt all the same."""
    row = {"messages": [_asked("q"), {"role": "assistant", **end}], "response": " rain."}
    assert 1 == len(parse_row(row, SOURCE).messages)
    with pytest.raises(UnusableAnswer, match="a request that ends with an assistant's message"):
        parse_answer(row, SOURCE)


def test_an_export_that_repeats_the_answer_is_used() -> None:
    """As its last message too."""
    said = {"role": "assistant", "content": "It rains."}
    for response in ("It rains.", said, {"choices": [{"message": said, "finish_reason": "stop"}]}):
        assert "It rains." == parse_answer({"messages": [_asked("q"), said], "response": response}, SOURCE).text
