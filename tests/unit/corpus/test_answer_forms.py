"""Answers in the forms of servers have one normal form; no known form, and no reason of the end, is no answer."""

import json
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import NO_REASON, LoggedAnswer, parse_answer
from pipeline.corpus.request_counts import request_counts

SOURCE = PromptSource(path="log.jsonl", use_answers=True)
_CALL = {"name": "f", "arguments": {"a": 1}}
_CALLED = [{"id": "c", "type": "function", "function": _CALL}]
_THOUGHT = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Hm.")


def _chat(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": "Use"}, "finish_reason": "stop", **choice}]}


def _response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    said = {"type": "message", "content": [{"type": "output_text", "text": "Use"}]}
    return {"object": "response", "status": "completed", "output": [*items, said], **more}


def _blocks(*blocks: dict[str, Any], reason: Any = "end_turn") -> dict[str, Any]:
    said = {"type": "text", "text": "Use"}
    return {"type": "message", "role": "assistant", "content": [*blocks, said], "stop_reason": reason}


FORMS: dict[str, tuple[Any, LoggedAnswer]] = {
    "chat": (_chat(), LoggedAnswer("Use")),
    "chat at its limit": (_chat(finish_reason="length"), LoggedAnswer("Use", cut=True)),
    "completion": ({"choices": [{"text": "Use", "finish_reason": "stop"}]}, LoggedAnswer("Use", completes=True)),
    "batch output": ({"status_code": 200, "body": _chat()}, LoggedAnswer("Use")),
    "batch line": ({"custom_id": "1", "response": {"status_code": 200, "body": _chat()}}, LoggedAnswer("Use")),
    "Responses": (_response(), LoggedAnswer("Use")),
    "Responses at its limit": (
        _response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        LoggedAnswer("Use", cut=True),
    ),
    "Responses with thinking": (
        _response({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}),
        LoggedAnswer("Use", message={"role": "assistant", "content": "Use", **_THOUGHT}),
    ),
    "Anthropic": (_blocks(), LoggedAnswer("Use")),
    "Anthropic at its limit": (_blocks(reason="max_tokens"), LoggedAnswer("Use", cut=True)),
    "Anthropic with thinking": (
        _blocks({"type": "thinking", "thinking": "Hm."}),
        LoggedAnswer("Use", message={"role": "assistant", "content": "Use", **_THOUGHT}),
    ),
    "Anthropic with a call": (
        {"content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}], "stop_reason": "tool_use"},
        LoggedAnswer("", message={"role": "assistant", "content": "", "tool_calls": _CALLED}),
    ),
    "SGLang": (
        {"text": "Use", "output_ids": [3, 4], "meta_info": {"finish_reason": {"type": "length", "length": 2}}},
        LoggedAnswer("", cut=True, tokens=(3, 4), completes=True),
    ),
    "llama.cpp": ({"content": "Use", "stop": True, "stop_type": "eos"}, LoggedAnswer("Use", completes=True)),
    "llama.cpp, older": ({"content": "Use", "stopped_limit": True}, LoggedAnswer("Use", cut=True, completes=True)),
    "TGI": (
        {"generated_text": "Use", "details": {"finish_reason": "eos_token", "tokens": [{"id": 3}, {"id": 4}]}},
        LoggedAnswer("", tokens=(3, 4), completes=True),
    ),
    "Ollama": (
        {"message": {"role": "assistant", "content": "Use"}, "done": True, "done_reason": "length"},
        LoggedAnswer("Use", cut=True),
    ),
    "a message": ({"role": "assistant", "content": "Use", "finish_reason": "length"}, LoggedAnswer("Use", cut=True)),
}


@pytest.mark.parametrize(("given", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_is_read_to_one(given: Any, expected: LoggedAnswer) -> None:
    """Also as the JSON text of itself."""
    assert [expected] * 2 == [parse_answer({"answer": answer}, SOURCE) for answer in (given, json.dumps(given))]


def test_json_text_may_stand_within() -> None:
    """Of the body, of the choices, and of a message."""
    choices = json.dumps([{"message": json.dumps(_chat()["choices"][0]["message"]), "finish_reason": "stop"}])
    assert LoggedAnswer("Use") == parse_answer({"answer": {"body": json.dumps({"choices": choices})}}, SOURCE)


def test_an_answer_in_json_is_a_text() -> None:
    """Of a target that writes JSON."""
    for text in ('{"city": "Oslo"}', '["a", 3]', "{not JSON", '{"status": "completed", "n": 1}'):
        assert LoggedAnswer(text) == parse_answer({"answer": text, "finish_reason": "stop"}, SOURCE)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "Use"}, NO_REASON),
        ({"answer": {"choices": [{"message": {"content": "Use"}}]}}, NO_REASON),
        ({"answer": {"content": "Use", "stop_type": "none"}}, NO_REASON),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, NO_REASON),
        ({"answer": {"text": "Use", "score": 3}}, "an answer of no known form"),
        ({"answer": {"error": {"message": "overloaded"}, "status_code": 503}}, "an answer of no known form"),
        ({"answer": 3}, "an answer of no known form"),
        ({"answer": '{"choices": [{"message": {"content": "Us'}, "an answer as text that is not JSON"),
        ({"answer": str(_chat())}, "an answer as text that is not JSON"),
        ({"answer": _blocks(reason="stop_sequence")}, "a stop string"),
        (
            {"answer": {"text": "Use", "meta_info": {"finish_reason": {"type": "stop", "matched": "#"}}}},
            "a stop string",
        ),
        ({"answer": _response(status="failed")}, "finish_reason failed"),
        ({"answer": _response({"type": "reasoning", "summary": []})}, "an answer with reasoning that is not in it"),
        ({"answer": _response({"type": "web_search_call"})}, "an answer with web_search_call that is not in it"),
        ({"answer": _blocks({"type": "redacted_thinking"})}, "an answer with parts that are no text"),
        (
            {"answer": _blocks({"type": "tool_use", "name": "f", "input": {}})},
            "an answer whose parts are in another order than a chat template's",
        ),
        ({"answer": {"message": {"content": "Us"}, "done": False}}, "broken off, with done false"),
    ],
)
def test_what_is_not_known_is_not_used(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableAnswer) as caught:
        parse_answer(row, SOURCE)
    assert reason == str(caught.value)


def test_the_source_may_know_what_ended_its_answers() -> None:
    """Not where a row says otherwise; and ids show by themselves whether they end."""
    whole = PromptSource(path="log.jsonl", use_answers=True, finish_reason="stop")
    assert LoggedAnswer("Use") == parse_answer({"answer": "Use"}, whole)
    assert parse_answer({"answer": "Use", "finish_reason": "length"}, whole).cut
    assert (3,) == parse_answer({"answer": {"choices": [{"text": "Use", "token_ids": [3]}]}}, SOURCE).tokens
    assert parse_answer({"answer": "Use", "stop_reason": "max_tokens"}, SOURCE).cut


def test_the_counts_of_a_request_may_be_in_json_text() -> None:
    answer = json.dumps({"timings": {"draft_n": 4, "draft_n_accepted": 3}})
    counts = request_counts({"response": answer})
    assert counts is not None
    assert (4, 3) == (counts.draft_tokens, counts.accepted)


@pytest.mark.parametrize(
    "answer",
    [
        {"reasoning": "because", "answer": 42},
        {"content": "Buy now", "title": "x"},
        {"message": {"content": "hi"}, "k": 1},
        {"result": {"content": "hi"}},
        {"generated_text": "abc", "score": 1},
        {"done": True, "response": "x"},
        {"choices": ["a", "b"]},
    ],
)
def test_what_a_target_wrote_in_json_is_its_answer(answer: dict[str, Any]) -> None:
    """Also where a key is one of a server's, and within Ollama's answer."""
    text = json.dumps(answer)
    row = {"answer": text, "finish_reason": "stop"}
    assert LoggedAnswer(text) == parse_answer(
        row, PromptSource(path="log.jsonl", use_answers=True, answer_field="answer")
    )
    ollama = {"response": text, "done": True, "done_reason": "stop"}
    assert text == parse_answer({SOURCE.answer_field or "answer": ollama}, SOURCE).text


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_a_stop_string_of_the_row_is_seen_beside_its_finish_reason(name: str) -> None:
    """The end of turn that would be trained behind it is not the target's."""
    source = PromptSource(path="log.jsonl", use_answers=True, answer_field="answer")
    for answer in ("abc", {"role": "assistant", "content": "abc"}, _chat()):
        with pytest.raises(UnusableAnswer, match="stop string"):
            parse_answer({"answer": answer, "finish_reason": "stop", name: "###"}, source)
    message = {"role": "assistant", "content": "abc"}
    assert LoggedAnswer("abc") == parse_answer({"answer": {**message, "stop_reason": "end_turn"}}, source)
    with pytest.raises(UnusableAnswer, match="stop string"):
        parse_answer({"answer": {**message, "finish_reason": "stop", name: "###"}}, source)
