"""Fields of requests that change the prompt are rendered as servers do, or the row is rejected with the field as its reason."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.first_pass import RowCounts
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.request_fields import NEUTRAL, REFUSED, REFUSED_UNDER_KEY, TAKEN, is_known
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.progress import Progress
from tests.unit.corpus.kept_rows import read_source
from tests.unit.segments.texts import bpe_tokenizer

_ASKED = {"role": "user", "content": "Why?"}
_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
_DOCUMENTS = [{"title": "t", "text": "a"}]
TEMPLATE = (
    "{{ reasoning_effort }}{{ '/think' if enable_thinking }}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TEMPLATE += PLAIN


class _Said(Progress):
    def __init__(self) -> None:
        super().__init__(False)
        self.said = list[str]()

    def warn(self, text: str) -> None:
        self.said.append(text)


def _written(tmp_path: Path, form: str, request: Any) -> Path:
    row = request | {"domain": "d"} if form == "flat" else {"request": request, "domain": "d"}
    path = tmp_path / ("p.parquet" if form == "parquet" else "p.jsonl")
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([{"request": json.dumps(request), "domain": "d"}]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    return path


def _read(
    path: Path, template: str = TEMPLATE, **settings: Any
) -> tuple[list[tuple[str, str]], RowCounts | None, list[str]]:
    """Text and domain of each prompt, the counts of rows, and warnings."""
    renderer, progress = Renderer(bpe_tokenizer((), template), None, {}), _Said()
    source = PromptSource(path=str(path), **settings)
    kept, counts = read_source(source, renderer, path.with_name("rejects"), progress, max_rejected_share=1)
    return [(renderer.text(prompt)[0], prompt.domain) for _, prompt, *_ in kept], counts, progress.said


def _row(request: Any, form: str, tmp_path: Path) -> Any:
    path = _written(tmp_path, form, request)
    (row,) = reader = SourceReader(0, PromptSource(path=str(path)), path)
    return row.value, reader.source


@pytest.mark.parametrize(
    ("fields", "text", "mode"),
    [
        ({"reasoning_effort": "high"}, "high/think", " (enable_thinking=true, reasoning_effort=high)"),
        ({"reasoning_effort": "none"}, "none", " (enable_thinking=false, reasoning_effort=none)"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "low",
            " (enable_thinking=false, reasoning_effort=low)",
        ),
        ({"reasoning_effort": None}, "", ""),
        ({"tools": _TOOLS[:1], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "(f)", ""),
        ({"tools": _TOOLS, "tool_choice": "required"}, "(f)(g)", ""),
        ({"tool_choice": "none"}, "", ""),
        ({"truncate_prompt_tokens": -1, "add_special_tokens": False, "add_generation_prompt": True}, "", ""),
        ({"truncate_prompt_tokens": 4000}, "", ""),
    ],
)
def test_what_servers_render_is_rendered(tmp_path: Path, fields: dict[str, Any], text: str, mode: str) -> None:
    """A request in the row, under a key, and as JSON text in Parquet."""
    for form in ("flat", "nested", "parquet"):
        found, _, said = _read(_written(tmp_path, form, {"messages": [_ASKED], **fields}))
        assert [(f"{text}<user>Why?", f"d{mode}")] == found, form
        assert [] == said


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": _TOOLS, "tool_choice": "none"}, "request with tools and tool_choice none"),
        ({"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "request with tool_choice"),
        ({"truncate_prompt_tokens": 2}, "request with truncate_prompt_tokens"),
        ({"add_special_tokens": True}, "request with add_special_tokens"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            "request with reasoning_effort",
        ),
        ({"reasoning_effort": ["low"]}, "request with reasoning_effort"),
        ({"add_generation_prompt": False}, "request with add_generation_prompt"),
        ({"continue_final_message": True}, "request with continue_final_message"),
    ],
)
def test_another_prompt_is_a_rejected_row(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    """Counted by the field."""
    for form in ("flat", "nested", "parquet"):
        path = _written(tmp_path, form, {"messages": [_ASKED], **fields})
        with pytest.raises(Exception, match=reason):
            _read(path)


@pytest.mark.parametrize(("stated", "text"), [(True, "(f)(g)<user>Why?"), (False, "<user>Why?")])
def test_what_a_server_does_with_tools_can_be_said(tmp_path: Path, stated: bool, text: str) -> None:
    path = _written(tmp_path, "nested", {"messages": [_ASKED], "tools": _TOOLS, "tool_choice": "none"})
    assert [(text, "d")] == _read(path, tools_if_none=stated)[0]


def test_an_effort_that_the_template_does_not_read_changes_nothing(tmp_path: Path) -> None:
    """As in servers: it is no mode. Where only one engine sets what the template reads, the row is rejected."""
    path = _written(tmp_path, "nested", {"messages": [_ASKED], "reasoning_effort": "high"})
    assert [("<user>Why?", "d")] == _read(path, PLAIN)[0]
    with pytest.raises(Exception, match="request with reasoning_effort: of the engines SGLang sets `thinking`"):
        _read(path, "{{ thinking }}" + PLAIN)


@pytest.mark.parametrize("name", REFUSED_UNDER_KEY)
def test_fields_that_only_requests_have(tmp_path: Path, name: str) -> None:
    """A column of a table may have such a name."""
    request = {"messages": [_ASKED], name: "x"}
    value, source = _row(request, "nested", tmp_path)
    with pytest.raises(BadRow, match=f"request with {name}: "):
        parse_row(value, source)
    value, source = _row(request, "flat", tmp_path)
    assert "Why?" == parse_row(value, source).messages[0]["content"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"system": "Be brief.", "messages": [_ASKED]}, "<system>Be brief.<user>Why?"),
        ({"system": [{"type": "text", "text": "Be brief."}], "messages": [_ASKED]}, "<system>Be brief.<user>Why?"),
        ({"instructions": "Be brief.", "input": "Why?"}, "<system>Be brief.<user>Why?"),
        ({"instructions": "Be brief.", "input": [_ASKED]}, "<system>Be brief.<user>Why?"),
        ({"reasoning": {"effort": "low"}, "input": [_ASKED]}, "low/think<user>Why?"),
        ({"documents": _DOCUMENTS, "messages": [_ASKED]}, "[a]<user>Why?"),
    ],
)
def test_what_a_request_says_beside_its_messages_is_read(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    """Of Anthropic's API, of Responses and of vLLM."""
    assert [text] == [found for found, _ in _read(_written(tmp_path, "nested", fields))[0]]


def test_unknown_fields_are_counted_aloud(tmp_path: Path) -> None:
    """Once a row, however often the file is read; without those that are known to change nothing."""
    rows = [
        {"request": {"messages": [_ASKED], "model": "m", "thinking": {"type": "enabled"}, "seed": None}, "domain": "d"}
    ]
    rows += [{"request": {"messages": [{"role": "user", "content": "How?"}], "thinking": 1, "x": 2, "return_y": 1}}]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (said,) = _read(path, sample=2)[2]
    assert "unknown fields of requests, by rows: thinking (2), x (1); if one changes the prompt" in said


def test_plain_texts_have_special_tokens() -> None:
    """By default of the completions route, and chats have none."""
    source = PromptSource(path="p")
    assert parse_row({"prompt": "a", "add_special_tokens": True}, source).plain
    with pytest.raises(BadRow, match="request with add_special_tokens"):
        parse_row({"prompt": "a", "add_special_tokens": False}, source)


def test_one_table_has_each_field_once() -> None:
    """What it refuses is known, and read of every row or of a request under a key."""
    assert set(REFUSED) <= set(TAKEN)
    assert not set(REFUSED) & set(NEUTRAL)
    assert not set(REFUSED_UNDER_KEY) & set(TAKEN)
    assert all(map(is_known, (*TAKEN, *REFUSED_UNDER_KEY, "system", "documents", "return_token_ids")))
    assert not is_known("thinking")


def test_parquet_has_the_columns_that_json_lines_have(tmp_path: Path) -> None:
    """Times, template arguments and fields of requests, also where no key names them."""
    row = {
        "messages": [_ASKED],
        "created": 1.7e9,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "low",
        "url": "/v1/chat/completions",
        "image": "a.png",
    }
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "p.parquet")
    of_lines, of_table = (
        [one.value for one in SourceReader(0, PromptSource(path="p"), tmp_path / name)]
        for name in ("p.jsonl", "p.parquet")
    )
    assert [row] == of_lines == of_table
    assert ("url", "image") == SourceReader(0, PromptSource(path="p"), tmp_path / "p.parquet").columns.unused
