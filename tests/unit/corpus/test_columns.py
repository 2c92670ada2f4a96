"""Columns of prompts: what is recognised and said, what is left to the user, and what a row of each form becomes."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow, ParsedPrompt, parse_row
from pipeline.errors import UsageError


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _from(sender: str, value: Any) -> dict[str, Any]:
    return {"from": sender, "value": value}


SHARE_GPT = {"id": "1", "conversations": [_from("system", "s"), _from("human", "q"), _from("gpt", "a")]}
ALPACA = {"instruction": "Translate.", "input": "Ja", "output": "Yes"}


def _reader(tmp_path: Path, *rows: Any, **settings: Any) -> SourceReader:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceReader(0, PromptSource(path=str(path), **settings), path)


def _prompts(reader: SourceReader) -> list[ParsedPrompt]:
    return [parse_row(row.value, reader.source) for row in reader]


@pytest.mark.parametrize(
    ("row", "layout", "messages"),
    [
        (SHARE_GPT, "ShareGPT: `conversations` with from/value", [_said("system", "s"), _said("user", "q")]),
        ({"conversation": [_said("user", "q")], "model": "m"}, "chats: `conversation` with role/content", [_said("user", "q")]),
        ({"log": [_said("user", "q")], "id": 3}, "chats: `log` with role/content", [_said("user", "q")]),
        ({"chat": json.dumps(SHARE_GPT["conversations"][1:])}, "ShareGPT: `chat` with from/value", [_said("user", "q")]),
        ({"chat": {"from": ["human", "gpt"], "value": ["q", "a"]}}, "ShareGPT: `chat` with from/value", [_said("user", "q")]),
        (ALPACA, "Alpaca: `instruction` and `input`", [_said("user", "Translate.\n\nJa")]),
        (ALPACA | {"input": " "}, "Alpaca: `instruction` and `input`", [_said("user", "Translate.")]),
        ({"instruction": "x", "output": "y"}, "Alpaca: `instruction`", [_said("user", "x")]),
        ({"id": 7, "question": "q", "answer": "a"}, "`question`", [_said("user", "q")]),
        ({" Question ": "q"}, "` Question `", [_said("user", "q")]),
        ({"sentence": "q"}, "`sentence`, the only column", [_said("user", "q")]),
        ({"prompt": [_said("user", "q")]}, "`prompt` with role/content", [_said("user", "q")]),
        ({"prompt": json.dumps([_said("user", "q")])}, "`prompt` with role/content", [_said("user", "q")]),
        ({"prompt": "q", "question": "other"}, "`prompt`", [_said("user", "q")]),
        ({"messages": SHARE_GPT["conversations"][1:]}, "`messages` with from/value", [_said("user", "q")]),
    ],
)  # fmt: skip
def test_forms_are_recognised(tmp_path: Path, row: Any, layout: str, messages: list[Any]) -> None:
    """The reader says what it recognised, and its source names the columns."""
    reader = _reader(tmp_path, row)
    (found,) = _prompts(reader)

    assert f"JSON lines, {layout}" == reader.layout
    assert messages == list(found.messages)


def test_an_empty_chat_hides_no_column(tmp_path: Path) -> None:
    """The first that is not empty tells."""
    reader = _reader(tmp_path, {"conversations": []}, SHARE_GPT)

    assert "JSON lines, ShareGPT: `conversations` with from/value" == reader.layout


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    """Other columns, and one that seems to hold system messages, which a key puts before the prompt."""
    row = {"id": 1, "system_prompt": "Be kind.", "question": "q", "response": "a"}
    reader = _reader(tmp_path, row)
    (with_system,) = _prompts(_reader(tmp_path, row, prompt_field="question", system_field="system_prompt"))

    assert (
        "read as JSON lines, `question`; columns not used: id, system_prompt, response "
        "(system_field: system_prompt puts it before each prompt)" == reader.summary
    )
    assert ((_said("system", "Be kind."), _said("user", "q")), False) == (with_system.messages, with_system.plain)


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"instruction": "x", "context": "c", "response": "r"}, "input_field: context puts it after each prompt"),
        ({"question": "x", "Passage": "c"}, "input_field: Passage puts it after each prompt"),
        ({"input": [_said("user", "q")], "instructions": "s"}, "system_field: instructions puts it before each prompt"),
    ],
)
def test_a_column_that_seems_to_belong_to_the_prompt_is_named(tmp_path: Path, row: Any, hint: str) -> None:
    """With the key that uses it, whose advice works."""
    summary = _reader(tmp_path, row).summary
    assert f" ({hint})" == summary[summary.index(" (") :]

    key, column = hint.split(" puts")[0].split(": ")
    (found,) = _prompts(_reader(tmp_path, row, **{key: column, **_named(row)}))
    assert row[column] in str(found.messages)


def _named(row: dict[str, Any]) -> dict[str, str]:
    return {"messages_field": "input"} if "input" in row else {"prompt_field": next(iter(row))}


def test_texts_beside_a_chat_are_not_taken_for_its_input(tmp_path: Path) -> None:
    """`input_field` belongs to prompts that are texts."""
    assert "columns not used: context" in _reader(tmp_path, {"prompt": [_said("user", "q")], "context": "c"}).summary
    assert "input_field" not in _reader(tmp_path, {"prompt": [_said("user", "q")], "context": "c"}).summary


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            {"question": "q", "text": "t"},
            r"line 1: several columns may hold the prompts: question, text .*; set prompt_field",
        ),
        (
            {"chosen": [_said("user", "q")], "rejected": [_said("user", "q")]},
            "line 1: several columns .*: chosen, rejected",
        ),
        ({"title": "t", "n": 1}, "line 1: no column that is known to hold prompts among title, n; set prompt_field or"),
        (
            {"data": [{"prompt": "a"}]},
            r"line 1: no column .* among data; take out the rows, for example with jq -c '\.data\[\]'",
        ),
        (
            {"prompts": ["a", "b"]},
            r"line 1: no column .* among prompts; take out the rows, for example with jq -c '\.prompts\[\]'",
        ),
        (
            {"id": 1, "a b": {"messages": [_said("user", "q")]}},
            r"line 1: no column .*; take out the rows, for example with jq -c '\.\[\"a b\"\]'",
        ),
    ],
)
def test_nothing_is_guessed_between_columns(tmp_path: Path, row: Any, complaint: str) -> None:
    """The user chooses, by the key or option that the message names."""
    with pytest.raises(UsageError, match=rf"p\.jsonl: {complaint}"):
        _reader(tmp_path, row)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("my log.jsonl", "jq -c .payload '{file}'"),
        ("my log.jsonl.gz", "gzip -dc '{file}' | jq -c .payload"),
        ("log.jsonl.zst", "zstd -dc {file} | jq -c .payload"),
        ("log.parquet", "write what is in `payload` as the rows of another file"),
    ],
)
def test_the_command_that_takes_rows_out_can_be_run(tmp_path: Path, name: str, command: str) -> None:
    """Of a compressed file it unpacks, names with spaces are quoted, and none is given for a file that jq does not read."""
    path, row = tmp_path / name, {"custom_id": "1", "payload": {"messages": [_said("user", "q")]}}
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        with path.open("wb") if codec is None else pa.CompressedOutputStream(str(path), codec) as file:
            file.write(json.dumps(row).encode())
    with pytest.raises(UsageError) as caught:
        SourceReader(0, PromptSource(path=str(path)), path)
    assert str(caught.value).endswith(command.format(file=path))


def test_rows_under_their_ids_are_all_taken_out(tmp_path: Path) -> None:
    """Not those of the first id alone."""
    with pytest.raises(UsageError, match=r"jq -c '\.\[\]'"):
        _reader(tmp_path, {"id1": {"prompt": "a"}, "id2": {"prompt": "b"}})


def test_a_column_that_is_named_is_read(tmp_path: Path) -> None:
    """And nothing is recognised beside it; where it is missing, the nearest is named."""
    named = _reader(tmp_path, ALPACA | {"title": "t"}, prompt_field="title")
    assert ["t"] == [found.messages[0]["content"] for found in _prompts(named)]

    with pytest.raises(UsageError, match=r"line 1: no column titel; its columns are .*title \(did you mean title\?\)"):
        _reader(tmp_path, ALPACA | {"title": "t"}, prompt_field="titel")
    with pytest.raises(UsageError, match="name the column with --prompt-field or --messages-field"):
        SourceReader(0, PromptSource(path="p", prompt_field="x"), tmp_path / "p.jsonl", option="--prompts")


def test_the_first_line_of_a_table_is_not_taken_for_the_only_column(tmp_path: Path) -> None:
    """A CSV file without a header has its first prompt there."""
    (tmp_path / "p.csv").write_text("What is love?\nWhy?\n")
    with pytest.raises(
        UsageError,
        match=r"line 1: no column .* among What is love\?; the first line is taken for the names of the columns",
    ):
        SourceReader(0, PromptSource(path="p"), tmp_path / "p.csv")


def test_settings_that_rows_state_are_used(tmp_path: Path) -> None:
    """`init`, `probe` and `decode` take the deployment's sampling from them."""
    reader = _reader(tmp_path, {"question": "q", "temperature": 0.7, "top_p": 0.9, "min_p": 0, "top_k": 5, "id": 1})

    assert ("id",) == tuple(reader.columns.unused)


def test_parquet_reads_the_columns_that_were_recognised(tmp_path: Path) -> None:
    """And no others."""
    pq.write_table(pa.Table.from_pylist([SHARE_GPT]), tmp_path / "p.parquet")
    reader = SourceReader(0, PromptSource(path="p"), tmp_path / "p.parquet")

    assert [{"conversations": SHARE_GPT["conversations"]}] == [row.value for row in reader]
    assert ("id",) == reader.columns.unused


def test_calls_and_results_of_tools_in_share_gpt() -> None:
    """A call that is JSON becomes one; results are messages of a tool."""
    call = _from("function_call", '{"name": "weather", "arguments": {"city": "Rome"}}')
    chat = [_from("Human", "q"), call, _from("observation", "sunny"), _from("function_call", "{")]
    source = PromptSource(path="p", messages_field="conversations")
    found = parse_row({"conversations": [*chat, _from("human", "r")]}, source)

    function = {"name": "weather", "arguments": {"city": "Rome"}}
    assert _said("assistant", "") | {"tool_calls": [{"type": "function", "function": function}]} == found.messages[1]
    assert (_said("tool", "sunny"), _said("assistant", "{")) == found.messages[2:4]
    with pytest.raises(BadRow, match=r"'conversations\[1\]' is from none of system, user, human"):
        parse_row({"conversations": [_from("clown", "q")]}, source)


@pytest.mark.parametrize(("row", "column"), [(SHARE_GPT, "`conversations`"), (ALPACA, "`output`")])
def test_answers_of_public_files_are_not_the_targets(tmp_path: Path, row: Any, column: str) -> None:
    """`use_answers` is refused for a form that was recognised, and not where the columns are named."""
    with pytest.raises(UsageError, match=f"use_answers: .*{column} of such files come from other models or people"):
        _reader(tmp_path, row, use_answers=True)


def test_answers_of_a_log_in_share_gpt() -> None:
    """Where the config names the column, the last message is the answer."""
    source = PromptSource(path="p", messages_field="conversations", use_answers=True, finish_reason="stop")

    assert "a" == parse_answer(SHARE_GPT, source).text
    with pytest.raises(UnusableAnswer, match="no answer"):
        parse_answer({"conversations": SHARE_GPT["conversations"][:2]}, source)


@pytest.mark.parametrize(
    ("name", "asks", "answers", "column"),
    [
        ("role", "prompter", "assistant", "text"),
        ("from", "human", "gpt", "prompt"),
        ("speaker", "User", "Bot", "content"),
    ],
)
def test_rows_that_are_one_message_each_are_refused(
    tmp_path: Path, name: str, asks: str, answers: str, column: str
) -> None:
    """Answers would be asked as prompts. Also where the column is named."""
    rows = [{column: f"text {n}", name: (asks, answers)[n % 2], "parent_id": n} for n in range(6)]
    for named in ({}, {"prompt_field": column}):
        with pytest.raises(UsageError, match=f"each row is one message \\(by its column `{name}`\\)"):
            _reader(tmp_path, *rows, **named)


@pytest.mark.parametrize(
    "roles", [["user"] * 4, ["doctor", "assistant", "user", "nurse"], [None] * 4, ["assistant"] * 4, [1, 2, 3, 4]]
)
def test_a_role_that_says_nothing_of_the_sender_is_a_column_like_others(tmp_path: Path, roles: list[Any]) -> None:
    reader = _reader(tmp_path, *({"prompt": f"text {n}", "role": role} for n, role in enumerate(roles)))
    assert 4 == len(_prompts(reader))
