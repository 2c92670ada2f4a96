"""Rows of logs hold the request in themselves or under a key; both may stand in one file, in every order."""

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
from pipeline.corpus.rows import BadRow, parse_row

_CHAT = [{"role": "user", "content": "q"}]
_ASKED = {"messages": _CHAT, "temperature": 0.5, "domain": "zzz", "stop": ["."], "model": "m"}
_READ = {"messages": _CHAT, "temperature": 0.5, "stop": ["."]}
_OWN = {"response": "a", "domain": "chat"}


def _rows(path: Path, **settings: Any) -> list[Any]:
    return [row.value for row in SourceReader(0, PromptSource(path=str(path), **settings), path)]


def _lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [("request", dict), ("request", json.dumps), ("body", dict), ("params", json.dumps), ("input", dict)],
)
def test_a_request_under_a_key_is_read(tmp_path: Path, name: str, write: Any) -> None:
    """Of it, only what requests say."""
    path = _lines(tmp_path / "log.jsonl", {name: write(_ASKED), **_OWN})
    assert [_OWN | _READ] == _rows(path)
    assert "chat" == parse_row(_rows(path)[0], PromptSource(path="p")).domain
    assert f"requests in `{name}`" in SourceReader(0, PromptSource(path=str(path)), path).layout


@pytest.mark.parametrize("order", [1, -1])
def test_logs_of_both_forms_are_read_together(tmp_path: Path, order: int) -> None:
    """A log goes on after its writer has changed, also behind the rows by which columns are recognised."""
    flat, nested = [_READ | _OWN] * 70, [{"request": _ASKED} | _OWN] * 70
    path = _lines(tmp_path / "log.jsonl", *(flat + nested)[::order])
    assert [_READ | _OWN] * 140 == _rows(path)


def test_a_column_of_texts_called_request_is_a_prompt(tmp_path: Path) -> None:
    path = _lines(tmp_path / "p.jsonl", {"request": "{write} a poem"})
    reader = SourceReader(0, PromptSource(path=str(path)), path)
    (row,) = reader
    assert "{write} a poem" == parse_row(row.value, reader.source).messages[0]["content"]


def test_a_request_in_parquet_is_read(tmp_path: Path) -> None:
    """Its nulls are those that Arrow filled in."""
    rows = [{"request": {"messages": _CHAT, "temperature": one}, "response": "a"} for one in (0.5, None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert [{"messages": _CHAT, "temperature": 0.5}, {"messages": _CHAT}] == _rows(tmp_path / "p.parquet")


def test_the_key_may_be_named_or_left_alone(tmp_path: Path) -> None:
    path = _lines(tmp_path / "log.jsonl", {"sent": _ASKED, "prompt": None})
    assert [{"prompt": None} | _READ] == _rows(path, request_field="sent")


@pytest.mark.parametrize("write", [dict, json.dumps], ids=["object", "JSON text"])
def test_the_body_of_a_gateways_request_is_the_request(tmp_path: Path, write: Any) -> None:
    path = _lines(
        tmp_path / "log.jsonl", {"request": {"uri": "/v1/x", "headers": {"a": "b"}, "body": write(_ASKED)}, **_OWN}
    )
    assert [_OWN | _READ] == _rows(path)


def test_a_request_in_the_column_of_prompts_is_read(tmp_path: Path) -> None:
    """As exports have it. A text that is JSON and no request is a prompt."""
    path = _lines(tmp_path / "log.jsonl", {"prompt": json.dumps(_ASKED), **_OWN}, {"prompt": "a text"})
    assert [_OWN | _READ, {"prompt": "a text"}] == _rows(path)
    path = _lines(tmp_path / "p.jsonl", {"prompt": '{"input": "x", "task": "y"}'})
    assert [{"prompt": '{"input": "x", "task": "y"}'}] == _rows(path)


@pytest.mark.parametrize("holder", ["options", "model_parameters", "sampling_params"])
def test_settings_in_an_object_are_those_of_the_request(tmp_path: Path, holder: str) -> None:
    """Whether it stands in the request or beside the chat, in JSON and in Parquet."""
    settings = {"temperature": 0.5, "stop": ["."]}
    source = {"use_answers": True, "answer_field": "response", "finish_reason": "stop"}
    asked = {"messages": _CHAT, holder: settings}
    for name, row in (("a", {"request": asked}), ("b", asked)):
        path = _lines(tmp_path / f"{name}.jsonl", {**row, **_OWN})
        pq.write_table(pa.Table.from_pylist([{**row, **_OWN}]), tmp_path / f"{name}.parquet")
        for file in (path, tmp_path / f"{name}.parquet"):
            (found,) = _rows(file, **source)
            assert settings == {key: found[key] for key in settings}
            with pytest.raises(UnusableAnswer, match="a request with stop"):
                parse_answer(found, PromptSource(path="p", **source))


def test_a_column_that_holds_no_settings_is_a_column_like_others(tmp_path: Path) -> None:
    path = _lines(tmp_path / "p.jsonl", {"question": "q", "options": {"a": "1"}, "parameters": [1]})
    assert ("options", "parameters") == SourceReader(0, PromptSource(path=str(path)), path).columns.unused


@pytest.mark.parametrize("name", ["images", "audio"])
def test_a_request_with_images_or_sounds_is_a_bad_row(tmp_path: Path, name: str) -> None:
    path = _lines(tmp_path / "log.jsonl", {"request": {"prompt": "q", name: ["aGk="]}})
    (row,) = _rows(path)
    with pytest.raises(BadRow, match=f"request with {name}"):
        parse_row(row, PromptSource(path="p"))
