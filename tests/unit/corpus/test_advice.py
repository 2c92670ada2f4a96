"""What a message advises has been tried on the rows, and recognition then succeeds; what cannot work is not advised."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import parse_row
from pipeline.errors import UsageError

_CHAT = {"messages": [{"role": "user", "content": "q"}]}
_ANSWER = {"status_code": 200, "body": {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}}


def _refused(path: Path, option: str | None = "--prompts") -> str:
    with pytest.raises(UsageError) as caught:
        SourceReader(0, PromptSource(path=str(path)), path, option=option)
    return str(caught.value)


def _refused_rows(tmp_path: Path, *rows: Any) -> str:
    """What is said of rows in JSON lines."""
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _refused(path)


def _jq(program: str, values: list[Any]) -> list[Any]:
    """What jq prints: keys, `["a key"]` and `[]`."""
    for key, quoted, each in re.findall(r"""\.([A-Za-z_]\w*)|\.?\[("[^"]*")\]|(\[\])""", program):
        if each:
            values = [item for value in values for item in (value.values() if isinstance(value, dict) else value)]
        else:
            values = [value[key or json.loads(quoted)] for value in values]
    return values


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "program"),
    [
        ({"data": [_CHAT] * 2, "n": 1}, ".data[]"),
        ({"data": {"rows": [_CHAT] * 2, "labels": ["a", "b"]}, "n": 1}, ".data.rows[]"),
        ({"id1": _CHAT, "id2": _CHAT}, ".[]"),
        ({"a b": {"c d": _CHAT}, "n": 1}, '.["a b"]["c d"]'),
        ({"n": 1, "payload": _CHAT}, ".payload"),
        ({"n": 1, "chats": [_CHAT["messages"]] * 2}, ".chats[]"),
        ({"n": 1, "rows": [{"x": {"prompt": "a"}}, {"x": {"prompt": "b"}}]}, ".rows[].x"),
    ],
)
def test_the_command_gives_rows_that_are_read(tmp_path: Path, value: Any, program: str, indent: int | None) -> None:
    """Of objects on one line and on several."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(value, indent=indent))
    command = shlex.split(_refused(path).partition("for example with ")[2])
    assert ["jq", "-c", program, str(path)] == command
    out = tmp_path / "rows.jsonl"
    rows = _jq(program, [value])
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if shutil.which("jq"):
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert rows == [json.loads(line) for line in said.splitlines()]
    reader = SourceReader(0, PromptSource(path=str(out)), out)
    assert [parse_row(row.value, reader.source) for row in reader]


def test_objects_over_several_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(_CHAT | {"n": n}, indent=1) + "\n" for n in range(3)))
    assert f"jq -c . {path}" in _refused(path)


def test_answers_without_their_requests_are_named(tmp_path: Path) -> None:
    """The output of a batch: no column can be named, and no program helps."""
    said = _refused_rows(tmp_path, {"id": "b0", "custom_id": "r-0", "response": _ANSWER, "error": None})
    assert said.endswith(
        "`response` holds answers, and no column the requests that they answer: join them with the file of the requests, "
        "such as by custom_id"
    )


@pytest.mark.parametrize(
    ("row", "option"),
    [({"title": "Tell me", "n": 1}, True), ({"id": "a7", "n": 1}, False), ({"labels": [1, 2], "score": 0.5}, False)],
)
def test_options_are_advised_where_they_help(tmp_path: Path, row: Any, option: bool) -> None:
    said = _refused_rows(tmp_path, row, row)
    assert option == said.endswith("name the column with --prompt-field or --messages-field")
    assert option or said.endswith("write the prompts as rows with `prompt` (a text) or `messages` (a chat)")


def test_labels_are_no_prompts(tmp_path: Path) -> None:
    """Lists of texts in many rows."""
    assert "jq" not in _refused_rows(tmp_path, {"id": "a", "tags": ["x", "y"]}, {"id": "b", "tags": ["z"]})


_SAID = {"role": "assistant", "content": "b"}


def _ended(text: str) -> Any:
    return {"text": text, "meta_info": {"finish_reason": {"type": "stop"}}}


def _in_body(messages: Any) -> Any:
    return {"input": {"inputBody": {"messages": messages}}}


_TEXTS = ["1", "2", "3", "4"]
NO_PROMPTS: dict[str, list[Any]] = {
    "one text of all rows": [{"a": {"b": ["Be brief."]}, "n": text} for text in _TEXTS],
    "system messages": [{"systemInstruction": {"parts": [{"text": text}]}, "contents": []} for text in _TEXTS],
    "headers": [{"request": {"headers": {"authorization": text}, "body": None}} for text in _TEXTS],
    "answers": [{"obj": {"input_ids": [1]}, "out": _ended(text)} for text in _TEXTS],
    "answers under another name": [{"sent": [1], "came": _ended(text)} for text in _TEXTS],
    "single messages": [{"thread": [{"role": "prompter", "text": text}, _SAID]} for text in _TEXTS],
    "speakers": [{"talk": [{"speaker": "user", "text": text}, {"speaker": "bot", "text": "b"}]} for text in _TEXTS],
    "turns": [
        {"id": 1, "conversation": [{"input": text, "output": "a"}, {"input": "And?", "output": "b"}]} for text in _TEXTS
    ],
    "parts of another form": [_in_body([{"role": "user", "content": [{"text": text}]}]) for text in _TEXTS],
    "names of columns": [{"columns": ["prompt"], "index": [0, 1], "data": [["a"], ["b"]]}],
    "cells of a table": [{"columns": ["prompt", "label"], "data": [["a", "x"], ["b", "x"]]}],
}


@pytest.mark.parametrize("rows", NO_PROMPTS.values(), ids=NO_PROMPTS)
def test_what_holds_no_prompts_is_not_advised(tmp_path: Path, rows: list[Any]) -> None:
    """Rows that a program makes are read, and yet they are not what was asked."""
    assert "for example" not in _refused_rows(tmp_path, *rows)


_OTHERS: dict[str, Any] = {
    "`thread` holds messages of another form (role, text)": NO_PROMPTS["single messages"][0],
    "`sent.contents` holds messages of another form (role, parts)": {
        "key": 1,
        "sent": {"contents": [{"role": "user", "parts": []}]},
    },
    "`input.inputBody.messages` holds messages of another form (role, content)": NO_PROMPTS["parts of another form"][0],
    "`sent.messages[]` holds messages of another form (type, data)": {
        "n": 1,
        "sent": {"messages": [[{"type": "human", "data": {}}]]},
    },
}


@pytest.mark.parametrize(("named", "row"), _OTHERS.items())
def test_messages_of_another_form_are_named(tmp_path: Path, named: str, row: Any) -> None:
    assert f"{named}; write each as {{role, content}}" in _refused_rows(tmp_path, row)


@pytest.mark.parametrize("text", ['{"prompt": "a"},\n{"prompt": "b"},\n', '{"prompt": "a"};\n{"prompt": "b"};\n'])
def test_lines_that_jq_does_not_read_are_not_advised_to_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    assert "for example" not in _refused(path)


@pytest.mark.parametrize("between", ["\r", "", " "])
def test_values_of_one_line_are_advised_as_rows(tmp_path: Path, between: str) -> None:
    """Such as old Macintosh line ends."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(between.join(['{"prompt": "a"}', '{"prompt": "b"}']).encode())
    command = shlex.split(_refused(path).partition("for example with ")[2])
    assert ["jq", "-c", ".", str(path)] == command
