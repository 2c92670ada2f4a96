"""Recorded answers whose thinking and tool calls a server parsed out of the text: the chat template writes them again."""

import json
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answer_store import StoredAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.parsed_parts import end_of_parts
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import parse_row
from tests.unit.segments.texts import QWEN3, bpe_tokenizer, template_of

SOURCE = PromptSource(path="log.jsonl", use_answers=True, finish_reason="stop")
ASKED = {"role": "user", "content": "What is the weather in Oslo?"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}}
_THINKS = "<think>\nLook it up.\n</think>\n\n"
_CALLS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def _stored(
    row: dict[str, Any], asked: dict[str, Any], template: str | None, source: PromptSource = SOURCE
) -> tuple[str, StoredAnswer]:
    """The answer of `row` to the prompt of the row `asked`: the text of its tokens, and how it is stored."""
    tokenizer = bpe_tokenizer(QWEN3, template)
    renderer, prompt = Renderer(tokenizer, None, {}), parse_row(asked, source)
    (ids,) = renderer.token_ids([renderer.text(prompt)])
    stored = renderer.answer_ids(prompt, ids, parse_answer(row, source))
    return tokenizer.decode(stored.tokens), stored


def _answer(row: dict[str, Any], template: str | None = None) -> tuple[str, bool]:
    """The text of the stored tokens, and whether it is cut."""
    text, stored = _stored(row, {"messages": [ASKED], **row}, template_of("qwen3") if template is None else template)
    assert not stored.exact
    return text, stored.cut


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "It rains.", "reasoning_content": "Look it up."}, _THINKS + "It rains.<|im_end|>"),
        # As vLLM gives them: the white space is the target's, and the template adds its own.
        ({"content": "\n\nIt rains.", "reasoning": "\nLook it up.\n"}, _THINKS + "It rains.<|im_end|>"),
        ({"content": "\n\nIt rains.\n", "reasoning": "\nLook it up.\n"}, _THINKS + "It rains.\n<|im_end|>"),
        (
            {"content": None, "reasoning": "\nLook.\n", "tool_calls": [_CALL]},
            f"<think>\nLook.\n</think>\n\n{_CALLS}<|im_end|>",
        ),
        ({"content": None, "tool_calls": [_CALL]}, _CALLS + "<|im_end|>"),
        ({"content": "", "function_call": _CALL["function"]}, _CALLS + "<|im_end|>"),
        (
            {"content": "I ask.", "reasoning_content": "Look it up.", "tool_calls": [_CALL, _CALL]},
            f"{_THINKS}I ask.\n{_CALLS}\n{_CALLS}<|im_end|>",
        ),
    ],
)
def test_the_template_writes_what_the_server_parsed(message: dict[str, Any], text: str) -> None:
    choice = {
        "message": {"role": "assistant", **message},
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
    }
    found, cut = _answer({"answer": {"choices": [choice]}})
    assert not cut
    assert found.removesuffix("\n") == text


def test_the_last_message_of_a_chat_may_hold_them() -> None:
    row = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]}
    assert _stored(row, row, template_of("qwen3"))[0].startswith(_CALLS)


def test_thinking_that_was_cut_has_no_end() -> None:
    row = {
        "answer": {"choices": [{"message": {"content": None, "reasoning": "Look it up"}, "finish_reason": "length"}]}
    }
    found, cut = _answer(row)
    assert cut
    assert "<think>\nLook it up".startswith(found)
    assert len(found) > len("<think>\n")


@pytest.mark.parametrize(
    ("message", "reason", "template", "why"),
    [
        ({"content": None, "tool_calls": [_CALL]}, "length", "qwen3", "tool calls that were cut off"),
        (
            {"content": "a", "reasoning": "\n\nb\n"},
            "stop",
            "qwen3",
            "white space that the chat template writes otherwise",
        ),
        ({"content": "\na", "reasoning": "b"}, "stop", "qwen3", "white space that the chat template writes otherwise"),
        ({"content": "a", "reasoning_content": "b"}, "stop", "hermes", "writes thinking or tool calls otherwise"),
        ({"content": "a", "reasoning_content": "b"}, "stop", "deepseek", None),
        ({"content": None, "tool_calls": [_CALL]}, "stop", "gemma3", "another chat template|otherwise"),
    ],
)
def test_what_the_template_does_not_write_is_not_used(
    message: dict[str, Any], reason: str, template: str, why: str | None
) -> None:
    row = {"answer": {"choices": [{"message": message, "finish_reason": reason}]}}
    if why is None:
        assert _answer(row, template_of(template))[0].startswith("b\n</think>")
        return
    with pytest.raises(UnusableAnswer, match=why):
        _answer(row, template_of(template))


def test_without_a_template_there_is_nothing_to_write_them_with() -> None:
    row = {"prompt": "Hi", "answer": {"content": "a", "reasoning_content": "b"}}
    with pytest.raises(UnusableAnswer, match="without a chat template"):
        _stored(row, row, None)


@pytest.mark.parametrize(
    ("column", "value", "used"),
    [
        ("response_format", {"type": "json_object"}, False),
        ("response_format", {"type": "text"}, True),
        ("tool_choice", "required", False),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, False),
        ("tool_choice", "auto", True),
        ("guided_json", {"type": "object"}, False),
    ],
)
def test_an_answer_under_a_grammar_is_no_sample(column: str, value: Any, used: bool) -> None:
    row = {"answer": "Use", column: value}
    if used:
        assert parse_answer(row, SOURCE).text == "Use"
        return
    with pytest.raises(UnusableAnswer, match=f"a request with {column}"):
        parse_answer(row, SOURCE)


@pytest.mark.parametrize(("said", "used"), [("Call me.", True), ("Mail to ann@example.com.", False)])
def test_token_ids_are_redacted_too(said: str, used: bool) -> None:
    """They are text to everybody who has the tokenizer, and the texts of a row may say less."""
    ids = bpe_tokenizer(QWEN3)(said, add_special_tokens=False)["input_ids"]
    row = {"messages": [ASKED], "answer": {"choices": [{"message": {"content": ""}, "token_ids": ids}]}}
    redacting = SOURCE.model_copy(update={"redact": True})
    assert tuple(ids) == _stored(row, row, template_of("qwen3"))[1].tokens
    if used:
        assert tuple(ids) == _stored(row, row, template_of("qwen3"), redacting)[1].tokens
        return
    with pytest.raises(UnusableAnswer, match="redacted"):
        _stored(row, row, template_of("qwen3"), redacting)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_of_earlier_messages_has_either_name(name: str) -> None:
    """As in vLLM: clients send it back under the name that they got, and templates read one of them."""
    called = {"role": "assistant", "content": None, name: "Look it up.", "tool_calls": [_CALL]}
    prompt = parse_row({"messages": [ASKED, called, {"role": "tool", "content": "5 degrees"}]}, SOURCE)
    assert ("Look it up.", "Look it up.") == (prompt.messages[1]["reasoning"], prompt.messages[1]["reasoning_content"])
    text, _ = Renderer(bpe_tokenizer(QWEN3, template_of("qwen3")), None, {}).text(prompt)
    assert _THINKS + _CALLS in text


def test_thinking_without_an_answer_may_not_have_ended() -> None:
    row = {"answer": {"choices": [{"message": {"content": None, "reasoning": "a"}, "finish_reason": "stop"}]}}
    with pytest.raises(UnusableAnswer, match="thinking without an answer"):
        _answer(row)


def test_white_space_between_the_parts_of_a_cut_answer_counts() -> None:
    """Only that at its end may be missing."""
    message = {"reasoning_content": "a\n", "content": "b \n"}
    assert end_of_parts("a\nb", 0, message, cut=True) == 3
    with pytest.raises(UnusableAnswer, match="white space"):
        end_of_parts("ab", 0, message, cut=True)


@pytest.mark.parametrize(("counted", "used"), [(None, True), (4, True), (9, True), (400, False)])
@pytest.mark.parametrize("content", ["It rains.", ""])
def test_a_text_that_is_not_all_of_the_answer_is_not_used(counted: int | None, used: bool, content: str) -> None:
    """A gateway that does not know of thinking logs what comes after it, and the server's count of tokens."""
    usage = None if counted is None else {"completion_tokens": counted}
    row = {"response": {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "usage": usage}}
    source = SOURCE.model_copy(update={"answer_field": "response"})
    if used:
        assert _stored(row, {"messages": [ASKED]}, template_of("qwen3"), source)[1].tokens
        return
    with pytest.raises(UnusableAnswer, match=r"a text of fewer tokens than usage\.completion_tokens"):
        _stored(row, {"messages": [ASKED]}, template_of("qwen3"), source)
