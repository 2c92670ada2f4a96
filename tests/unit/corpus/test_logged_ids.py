"""Token ids of recorded answers, as each engine and gateway gives them; answers whose request or end forbids their use."""

from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer

SOURCE = PromptSource(path="log.jsonl", use_answers=True, answer_field="response")
_MESSAGE = {"role": "assistant", "content": "Use"}


def _parsed(choice: dict[str, Any], answer: dict[str, Any] | None = None, **row: Any) -> Any:
    whole = {"choices": [{"message": _MESSAGE, "finish_reason": "stop", **choice}], **(answer or {})}
    return parse_answer({"response": whole, **row}, SOURCE)


@pytest.mark.parametrize(
    ("choice", "answer", "prompt"),
    [
        ({"token_ids": [5, 6]}, {"prompt_token_ids": [1, 2]}, (1, 2)),  # vLLM
        ({"response_token_ids": [5, 6], "prompt_token_ids": [1, 2]}, {}, (1, 2)),  # SGLang
        ({}, {"sglext": {"input_ids": [1, 2], "output_ids": [[5, 6]]}}, (1, 2)),  # SGLang, also of a stream
        ({}, {"__verbose": {"tokens": [5, 6]}}, None),  # llama.cpp
        ({"provider_specific_fields": {"token_ids": [5, 6]}}, {"prompt_token_ids": [1, 2]}, (1, 2)),  # LiteLLM
    ],
)
def test_token_ids_are_read_as_the_server_gives_them(
    choice: dict[str, Any], answer: dict[str, Any], prompt: tuple[int, ...] | None
) -> None:
    found = _parsed(choice, {"usage": {"completion_tokens": 2}, **answer})
    assert ((5, 6), prompt) == (found.tokens, found.prompt_tokens)


def test_a_stream_without_token_ids_has_none() -> None:
    """llama.cpp: empty lists."""
    assert _parsed({}, {"__verbose": {"tokens": []}, "sglext": {"output_ids": []}}).tokens is None


def test_token_ids_that_a_gateway_dropped_are_noticed() -> None:
    """It leaves out the chunks of a stream that have no text, such as those of markers."""
    with pytest.raises(UnusableAnswer, match="token ids that are not all"):
        _parsed({"token_ids": [5, 6]}, {"usage": {"completion_tokens": 3}})


def test_usage_of_several_choices_is_not_that_of_one() -> None:
    choice = {"message": _MESSAGE, "finish_reason": "stop", "token_ids": [5, 6]}
    found = _parsed({}, {"choices": [choice, choice], "usage": {"completion_tokens": 4}})
    assert found.tokens == (5, 6)


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_tool_calls_at_the_limit_were_cut(reason: str) -> None:
    """vLLM gives this reason also where the limit ended the answer after a call."""
    usage = {"usage": {"completion_tokens": 8}}
    assert _parsed({"finish_reason": reason}, usage, max_tokens=8).cut
    assert _parsed({"finish_reason": reason}, usage, max_completion_tokens=8, max_tokens=20).cut
    assert not _parsed({"finish_reason": reason}, usage, max_tokens=9).cut
    assert not _parsed({"finish_reason": reason}, usage).cut


@pytest.mark.parametrize(
    ("choice", "row", "why"),
    [
        ({"finish_reason": None}, {}, "broken off"),
        ({"matched_stop": "END"}, {}, "a stop string"),  # SGLang
        ({}, {"include_reasoning": False}, "a request with include_reasoning"),
        ({}, {"parallel_tool_calls": False}, "a request with parallel_tool_calls"),
        ({}, {"ignore_eos": True}, "a request with ignore_eos"),
        ({}, {"stop_token_ids": [3]}, "a request with stop_token_ids"),
        ({}, {"echo": True}, "a request with echo"),
        ({}, {"ebnf": "root ::= x"}, "a request with ebnf"),
    ],
)
def test_an_answer_that_is_no_whole_sample_is_not_used(choice: dict[str, Any], row: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableAnswer, match=why):
        _parsed(choice, **row)


def test_settings_that_change_nothing_do_not_count() -> None:
    row = {"include_reasoning": True, "ignore_eos": False, "stop_token_ids": [], "min_tokens": 0, "grammar": ""}
    assert _parsed({"matched_stop": 2}, **row).text == "Use"
