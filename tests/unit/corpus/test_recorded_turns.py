"""`every_answer`: each recorded answer of a session is a completion to the messages before it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.first_pass import RowCounts
from pipeline.corpus.recorded_turns import rows_by_answer
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import parse_row
from tests.unit.corpus.kept_rows import KeptRows, read_source
from tests.unit.segments.texts import QWEN3, bpe_tokenizer, template_of

SOURCE = PromptSource(path="log.jsonl", use_answers=True, every_answer=True, finish_reason="stop")


def _message(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}}
SESSION = [
    _message("system", "Use tools."),
    _message("user", "What is the weather in Oslo?"),
    _message("assistant", None, reasoning_content="Look it up.", tool_calls=[_CALL]),
    _message("tool", "rain, 4 degrees", tool_call_id="c1"),
    _message("assistant", "It rains."),
    _message("user", "And tomorrow?"),
    _message("assistant", "I do not know."),
]


def _ends(messages: list[Any], **more: Any) -> list[int]:
    return [len(row["messages"]) for row in rows_by_answer({"messages": messages, **more}, SOURCE)]


def test_each_answer_ends_a_row() -> None:
    """After the first question; of answers in a row, the run of them; a row that ends with a question is a prompt too."""
    assert [3, 5, 7] == _ends(SESSION)
    assert [3, 5, 6] == _ends(SESSION[:6])
    assert [4, 6] == _ends([_message("assistant", "Hello."), *SESSION[:2], *SESSION[4:]])
    assert [3, 5] == _ends([_message("assistant", "Hello."), SESSION[1], *SESSION[4:]])
    assert [4, 6] == _ends([*SESSION[:2], SESSION[4], *SESSION[4:]])
    assert [2] == _ends(SESSION[:2])


def test_other_rows_are_as_they_are() -> None:
    """Without `every_answer`, and where there is no chat, or a prompt goes before it; malformed messages are found by the
    parser."""
    row = {"messages": SESSION}
    both = {"prompt": "a", **row}
    assert [row] == rows_by_answer(row, PromptSource(path="log.jsonl"))
    for value in ({"prompt": "a"}, {"messages": "a"}, {"messages": None}, 3, {"messages": [3, None]}, both):
        assert [value] == rows_by_answer(value, SOURCE)


def test_what_a_row_states_is_of_its_last_answer() -> None:
    """The others are of their messages, and none was cut."""
    row = {"messages": SESSION[:6], "answer": "Snow", "finish_reason": "length", "temperature": 1.0}
    found = [parse_answer(one, SOURCE) for one in rows_by_answer(row, SOURCE)]
    stopped = rows_by_answer(row | {"stop_reason": "END"}, SOURCE)

    assert ["", "It rains.", "Snow"] == [one.text for one in found]
    assert [False, False, True] == [one.cut for one in found]
    assert {1.0} == {one.stated["temperature"] for one in found}
    assert [False, False, True] == ["stop_reason" in one for one in stopped]


@pytest.mark.parametrize("form", ["text", "columns", "ShareGPT"])
def test_every_form_of_a_chat(form: str) -> None:
    """JSON text, an object of lists as `datasets` has it, and from/value."""
    chat: Any = [_message(one["role"], one["content"]) for one in SESSION if one["content"]]
    if form == "text":
        chat = json.dumps(chat)
    elif form == "columns":
        chat = {name: [one[name] for one in chat] for name in ("role", "content")}
    else:
        names = {"user": "human", "assistant": "gpt"}
        chat = [{"from": names.get(one["role"], one["role"]), "value": one["content"]} for one in chat]
    rows = rows_by_answer({"messages": chat}, SOURCE)

    assert ["It rains.", "I do not know."] == [parse_answer(row, SOURCE).text for row in rows]
    assert [["system", "user", "tool"], ["system", "user", "tool", "assistant", "user"]] == [
        [message["role"] for message in parse_row(row, SOURCE).messages] for row in rows
    ]


def _read(tmp_path: Path, row: dict[str, Any], **fields: Any) -> tuple[KeptRows, Any, RowCounts]:
    path, tokenizer = tmp_path / "log.jsonl", bpe_tokenizer(QWEN3, template_of("qwen3"))
    path.write_text(json.dumps(row))
    source = SOURCE.model_copy(update={"path": str(path), **fields})
    kept, counts = read_source(source, Renderer(tokenizer, None, {}), tmp_path / "rejects")
    return kept, tokenizer, counts


def test_a_session_gives_a_prompt_and_a_completion_for_each_turn(tmp_path: Path) -> None:
    """Tool results and earlier answers are in prompts only; the completion has thinking and calls."""
    kept, tokenizer, counts = _read(tmp_path, {"messages": SESSION})
    texts = [(tokenizer.decode(ids), tokenizer.decode(answer.tokens)) for _, _, ids, _, answer in kept]

    assert (3, 3, 3) == (counts.rows, counts.accepted, counts.answers)
    assert ["<think>\nLook it up.", "It rains.", "I do not know."] == [
        said.split("<|im_end|>")[0][:20].strip() for _, said in texts
    ]
    assert [False, True, True] == ["rain, 4 degrees" in asked for asked, _ in texts]
    assert not any("degrees" in said for _, said in texts)
    assert "</think>" in texts[1][0]  # as this template does
    assert 1 == len({prompt.conversation for _, prompt, *_ in kept})
    assert 3 == len({prompt.place for _, prompt, *_ in kept})
