"""A chat or a list of texts that a program printed is a bad row and no prompt; a prompt about one is a prompt."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow, parse_row

_SAID = {"role": "user", "content": "What is 2+2?"}
_CHAT = [_SAID, {"role": "assistant", "content": "4"}, _SAID]
SOURCE = PromptSource(path="p")


@pytest.mark.parametrize(
    "text",
    [
        str(_CHAT),
        str([{"content": "it's", "role": "user"}]),
        "[{'content': 'a', 'role': 'user'}\n {'content': 'b', 'role': 'assistant'}]",  # numpy
        "array([{'role': 'user', 'content': 'a'}], dtype=object)",
        "[Message(role='user', content='a')]",
        str(_SAID),
        json.dumps(_SAID),
        json.dumps([{"role": "user", "text": "a"}]),
        json.dumps(json.dumps(_CHAT)),
        str([{"from": "human", "value": "a"}]),
        "['Write a post.', 'Rewrite it.']",
        "['Write a post.'\n 'Rewrite it.']",  # numpy
    ],
)
def test_a_list_that_a_program_printed_is_a_bad_row(text: str) -> None:
    with pytest.raises(BadRow, match="chat or list written as text"):
        parse_row({"prompt": text}, SOURCE)


@pytest.mark.parametrize(
    "text",
    [
        str(_CHAT) + "\nSummarise this chat.",
        "What does role: user mean in [{'role': 'user'}]?",
        "[1, 2, 3]",
        '"[role: user] is what I see"',
        '{"city": "Oslo", "role": "mayor"}',
        '["Oslo", "Rome"]',
        "['a'] is a list, and so is ['b']",
        "array(['x']) fails. Why?",
        "[" * 5000,
    ],
)
def test_a_prompt_about_one_is_a_prompt(text: str) -> None:
    assert text == parse_row({"prompt": text}, SOURCE).messages[0]["content"]


@pytest.mark.parametrize(
    ("name", "texts", "bad"),
    [
        ("p.jsonl", ["Sort these.", '["b", "a"]', "Why?"], 0),
        ("p.txt", ["Sort these.", '["b", "a"]', "Why?"], 0),
        ("p.jsonl", ["Why?", '["b", "a"]', '["c", "d"]'], 2),
        ("p.txt", ["Why?", '["b", "a"]', '["c", "d"]'], 2),
        ("p.csv", ["Sort these.", '["b", "a"]', "Why?"], 1),
    ],
)
def test_a_json_list_is_a_prompt_where_a_column_is_of_texts(
    tmp_path: Path, name: str, texts: list[str], bad: int
) -> None:
    """A file that has lists, and mostly texts in this column, means the text. A table has no other lists."""
    rows = [{"prompt": text} for text in texts]
    with (tmp_path / name).open("w", newline="") as stream:
        if name == "p.csv":
            writer = csv.DictWriter(stream, ["prompt"])
            writer.writeheader()
            writer.writerows(rows)
        else:
            stream.writelines((json.dumps(row) if name == "p.jsonl" else row["prompt"]) + "\n" for row in rows)
    found = [row.value for row in SourceReader(0, SOURCE, tmp_path / name)]
    assert bad == sum(isinstance(value, BadRow) and value.kind == "chat or list written as text" for value in found)
    assert len(texts) - bad == sum(value in rows for value in found)


def test_a_json_chat_is_read() -> None:
    assert _CHAT == [*parse_row({"prompt": json.dumps(_CHAT)}, SOURCE).messages]


@pytest.mark.parametrize(("column", "order"), [("prompt", 1), ("prompt", -1), ("input", -1), ("question", 1)])
def test_texts_chats_and_turns_may_stand_in_one_column(tmp_path: Path, column: str, order: int) -> None:
    """In every order of rows."""
    values: list[Any] = ["a text", [_SAID], ["first", "second"], "another"][::order]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({column: value, "id": 1}) + "\n" for value in values))
    reader = SourceReader(0, SOURCE, tmp_path / "p.jsonl")
    asked = [parse_row(row.value, reader.source).messages[0]["content"] for row in reader]
    assert ["a text", "What is 2+2?", "first", "another"][::order] == asked


def test_turns_in_the_column_of_prompts_are_turns() -> None:
    """All of them with `every_turn`; the others are counted. A column of their JSON text has to be named."""
    row = {"prompt": ["first", "second"]}
    assert 1 == parse_row(row, SOURCE).dropped_turns
    every = parse_row(row, PromptSource(path="p", every_turn=True))
    assert ("second", 0) == (every.follow_ups[0][0]["content"], every.dropped_turns)
    named = PromptSource(path="p", turns_field="prompt")
    assert "first" == parse_row({"prompt": '["first", "second"]'}, named).messages[0]["content"]


def test_json_text_may_stand_wherever_an_object_may() -> None:
    """Messages, tool calls and tools, each a text, or all of them one."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": None}}}
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"a": None}}}]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    chat = [_SAID, called, {"role": "tool", "content": "r"}]
    for column in ("prompt", "messages"):
        for given in (chat, list(map(json.dumps, chat)), json.dumps(chat)):
            for tools in ([tool], [json.dumps(tool)], json.dumps([tool])):
                found = parse_row({column: given, "tools": tools}, SOURCE)
                assert ((*chat,), (tool,)) == (found.messages, found.facts.tools)
    for written in (json.dumps(calls), [json.dumps(calls[0])]):
        row = {"messages": [_SAID, called | {"tool_calls": written}, chat[2]]}
        assert calls == parse_row(row, SOURCE).messages[1]["tool_calls"]


def test_a_turn_that_is_a_spelled_chat_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match="chat or list written as text"):
        parse_row({"turns": [str(_CHAT)]}, SOURCE)
