"""Reading and rendering of prompt rows: formats, every kind of bad row, chat templates."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus import text_files
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_facts import RowFacts
from pipeline.corpus.rows import BadRow, ParsedPrompt, parse_row
from pipeline.corpus.text_files import count_lines
from pipeline.errors import UsageError

SOURCE = PromptSource(path="p.jsonl")
ROWS = [{"prompt": "one"}, {"prompt": "two 🎭"}, {"prompt": "three"}]


class WordTokenizer:
    """Words are tokens; 1 is the special token that is added on request; the template brings 7 and 8."""

    def __init__(self, template: str | None = "{{ messages }} {{ mood }} {{ tools }} {% if role == 'clown' %}") -> None:
        self.chat_template = template

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
        words = [[100 + sum(word.encode()) for word in line.split()] for line in text]
        return {"input_ids": [[1, *ids] if add_special_tokens else ids for ids in words]}

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool, **kw: Any) -> str:
        assert not tokenize
        if conversation[0]["role"] == "clown":
            raise ValueError("no clowns")
        lines = [f"<{message['role']}> {message['content']}" for message in conversation]
        return "\n".join([*lines, "<assistant>" if add_generation_prompt else "", *kw.values()])


def _jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def _parquet(path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def _dataset(path: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


def _parquet_directory(path: Path) -> Path:
    (path / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(ROWS[:2]), path / "data" / "train-0.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[2:]), path / "data" / "train-1.parquet")
    return path


@pytest.mark.parametrize(
    ("write", "name"),
    [(_jsonl, "p.jsonl"), (_parquet, "p.parquet"), (_dataset, "saved"), (_parquet_directory, "hub")],
)
def test_formats_give_the_same_rows(tmp_path: Path, write: Callable[[Path], Path], name: str) -> None:
    """Every format, recognised by its name, yields the same prompts in the same order, and counts them."""
    reader = SourceReader(0, SOURCE, write(tmp_path / name))

    assert [row["prompt"] for row in ROWS] == [row.value["prompt"] for row in reader]
    assert len(ROWS) == reader.total()


def test_a_last_line_without_a_newline_counts(tmp_path: Path) -> None:
    """`plan` counts by it: one row of a file is one, and no row has more answers than there are rows."""
    for text, expected in (("", 0), ("{}", 1), ("{}\n", 1), ("{}\n{}", 2)):
        (tmp_path / "p.jsonl").write_text(text)
        assert expected == count_lines(tmp_path / "p.jsonl")


def test_limit_reads_the_first_rows(tmp_path: Path) -> None:
    """`limit` stops reading, and the progress total knows it."""
    reader = SourceReader(0, PromptSource(path="p", limit=2), _jsonl(tmp_path / "p.jsonl"))

    assert (2, [1, 2]) == (reader.total(), [row.number for row in reader])


def test_reference_reads_the_pairs_prompts(tmp_path: Path) -> None:
    """The source `reference` is prompts.jsonl of the pair artifact."""
    _jsonl(tmp_path / "prompts.jsonl")

    assert 3 == len(list(SourceReader(0, PromptSource(path="reference"), tmp_path)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "cut', "broken JSON: Unterminated string"),
        (b"[" * 100_000, "broken JSON"),
        (b'{"prompt": "\xff"}', "invalid unicode: not UTF-8 at byte 13 (convert Latin-1 text to UTF-8)"),
        (b'{"prompt": "' + b"x" * 300 + b'"}', "line too long: more than 200 bytes"),
    ],
)
def test_unparsable_line_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, reason: str
) -> None:
    """A line that is not JSON is reported with its number, and the lines around it are read."""
    if reason.startswith("line too long"):
        monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 200)
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n' + line + b'\n{"prompt": "b"}')
    first, bad, last = SourceReader(0, SOURCE, path)

    assert ({"prompt": "a"}, {"prompt": "b"}) == (first.value, last.value)
    assert (3, 4) == (bad.number, last.number)
    assert str(bad.value).startswith(reason)


def test_bad_utf8_in_parquet_costs_one_row(tmp_path: Path) -> None:
    """A string column with broken UTF-8 loses only the broken row."""
    raw = pa.array([b"good", b"\xff\xfe", b"fine"]).cast(pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"prompt": broken}), tmp_path / "p.parquet")
    rows = [row.value for row in SourceReader(0, SOURCE, tmp_path / "p.parquet")]

    assert [{"prompt": "good"}, {"prompt": "fine"}] == [rows[0], rows[2]]
    assert "invalid unicode" == rows[1].kind


def _two_splits(path: Path) -> None:
    import datasets

    datasets.DatasetDict({"a": datasets.Dataset.from_list(ROWS), "b": datasets.Dataset.from_list(ROWS)}).save_to_disk(
        str(path / "p.txt")
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: (folder / "p.txt").mkdir(), "was not written by save_to_disk"),
        (lambda folder: None, "no such file"),
        (_two_splits, "contains the splits a, b"),
    ],
)
def test_unusable_path_is_one_clear_line(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    """A path that cannot be read as prompts is a usage error that names it."""
    make(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        SourceReader(0, SOURCE, tmp_path / "p.txt").total()

    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_parquet_and_missing_columns_name_the_file(tmp_path: Path) -> None:
    """A file that is not Parquet, or has no prompt column, stops with its name and the columns that are there."""
    (tmp_path / "p.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match=r"p\.parquet: not readable as Parquet"):
        SourceReader(0, SOURCE, tmp_path / "p.parquet").total()
    pq.write_table(pa.table({"title": ["a"], "body": ["b"]}), tmp_path / "q.parquet")
    with pytest.raises(UsageError, match=r"q\.parquet: row 1: no column .* among title, body; set prompt_field or"):
        SourceReader(0, SOURCE, tmp_path / "q.parquet")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "not an object: a row is a JSON object, not a list"),
        ({"text": "x"}, "missing column: no prompt or messages or turns among the columns text"),
        ({"prompt": None}, "null prompt: 'prompt' is null"),
        ({"prompt": ""}, "empty prompt: 'prompt' is empty"),
        ({"prompt": " \n"}, "empty prompt: 'prompt' is empty"),
        ({"prompt": 3}, "not text: 'prompt' is a number"),
        ({"prompt": "a\0b"}, "NUL character: 'prompt' at character 2"),
        ({"prompt": "a\ud800"}, "invalid unicode: 'prompt' has a lone surrogate at character 2"),
        ({"prompt": "x" * 1_000_001}, "too many characters: 'prompt' has 1,000,001, at most 1,000,000 are read"),
        ({"messages": "hi"}, "bad messages: 'messages' is not a list of messages"),
        ({"messages": []}, "bad messages: 'messages' is not a list of messages"),
        ({"messages": ["hi"]}, "bad messages: 'messages[1]' is text, not {role, content}"),
        ({"messages": [{"content": "x"}]}, "bad messages: 'messages[1]' has no role"),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            "content is not text: 'messages[1]' has a part that is text",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, "empty prompt: 'messages[1]' is empty"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            "bad messages: 'messages' has no user message",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "when": {1}}]},
            "bad messages: 'messages[1]' holds a value that JSON does not support",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "\0"}]},
            "NUL character: 'messages[2]'",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 600_000}] * 2},
            "too many characters: 'messages' has more than 1,000,000",
        ),
        ({"turns": []}, "bad turns: 'turns' is not a list of texts"),
        ({"turns": [None, "x"]}, "null prompt: 'turns[1]' is null"),
        ({"prompt": "x", "domain": ["a"]}, "bad domain: it is a list, not text"),
        ({"prompt": "x", "group": {"a": 1}}, "bad group: it is an object, not text"),
        ({"prompt": "x", "group": "g" * 201}, "bad group: 201 characters, at most 200, without NUL"),
    ],
)
def test_bad_row_has_one_reason(value: Any, reason: str) -> None:
    """Every kind of unusable row is refused with a reason that holds no content."""
    with pytest.raises(BadRow) as caught:
        parse_row(value, SOURCE)

    assert reason == str(caught.value)


def test_messages_of_an_api_are_read() -> None:
    """Content parts are joined by newlines; an assistant's message may have tool calls only, whose arguments become an object."""
    call = {"id": "1", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the weather?"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
    ]
    found = parse_row({"messages": messages}, SOURCE)

    parsed = {"id": "1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert "What is\nthe weather?" == found.messages[0]["content"]
    assert {"role": "assistant", "content": "", "tool_calls": [parsed]} == found.messages[1]
    assert "what is the weather\n\nsunny" == found.comparison_text
    of_responses = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert "a\nb" == parse_row({"messages": [{"role": "user", "content": of_responses}]}, SOURCE).messages[0]["content"]
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(BadRow, match="'messages\\[1\\]' has a part of type image_url"):
        parse_row({"messages": [{"role": "user", "content": image}]}, SOURCE)


def test_prompt_keeps_text_domain_and_group() -> None:
    """A plain prompt is one user message, with the columns' domain and group as text."""
    found = parse_row({"prompt": "Hi 🎭", "domain": "chat", "group": 7}, SOURCE)

    assert ParsedPrompt(({"role": "user", "content": "Hi 🎭"},), True, "chat", "7") == found


def test_domain_of_the_source_wins() -> None:
    """`domain` of the source has priority over the column, which has priority over "default"."""
    fixed = PromptSource(path="p", domain="fixed")
    category = PromptSource(path="p", domain_field="category")
    row = {"prompt": "x", "domain": "a", "category": "b"}

    assert ["fixed", "b", "a"] == [parse_row(row, source).domain for source in (fixed, category, SOURCE)]
    assert "default" == parse_row({"prompt": "x"}, SOURCE).domain


def test_missing_group_of_a_data_frame() -> None:
    """NaN, which data frames use for missing values, is no group."""
    assert parse_row({"prompt": "x", "group": float("nan")}, SOURCE).group is None


def test_answers_and_later_turns_are_dropped_and_counted() -> None:
    """A chat's last answer and Spec-Bench's later turns are not part of the prompt."""
    messages = [{"role": "user", "content": "q", "name": None}, {"role": "assistant", "content": "a"}]
    chat = parse_row({"messages": messages}, SOURCE)
    bench = parse_row({"turns": ["first", "second", "third"]}, SOURCE)

    assert (({"role": "user", "content": "q"},), 1) == (chat.messages, chat.dropped_answers)
    assert ("first", 2) == (bench.messages[0]["content"], bench.dropped_turns)


def test_system_message_is_not_compared() -> None:
    """A deployment's shared system message does not make its prompts near-duplicates."""
    row = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "q"}]}

    assert "q" == parse_row(row, SOURCE).comparison_text


PLAIN = ParsedPrompt(({"role": "user", "content": "a b"},), True, "d", None)
CHAT = ParsedPrompt(({"role": "user", "content": "a b"},), False, "d", None)


@pytest.mark.parametrize(
    ("template", "wanted", "expected"),
    [
        ("yes", None, ("<user> a b\n<assistant>", False)),
        ("yes", True, ("<user> a b\n<assistant>", False)),
        ("yes", False, ("a b", True)),
        (None, None, ("a b", True)),
        (None, False, ("a b", True)),
    ],
)
def test_plain_prompts_follow_chat_template(
    template: str | None, wanted: bool | None, expected: tuple[str, bool]
) -> None:
    """A plain prompt is rendered where there is a template, unless told otherwise; else it gets special tokens."""
    assert expected == Renderer(WordTokenizer(template), wanted, {}).text(PLAIN)


def test_template_arguments_and_special_tokens() -> None:
    """Arguments reach the template; special tokens are added to plain text only; order is kept."""
    renderer = Renderer(WordTokenizer(), None, {"mood": "brief"})

    assert "<user> a b\n<assistant>\nbrief" == renderer.text(CHAT)[0]
    assert [[1, 197], [198], [1, 199]] == renderer.token_ids([("a", True), ("b", False), ("c", True)])
    assert [[197]] == renderer.bare_ids(["a"])


def test_templates_that_cannot_be_used() -> None:
    """A missing template, an argument that it does not read and a template error give different errors."""
    clown = ParsedPrompt(({"role": "clown", "content": "x"},), False, "d", None)
    with pytest.raises(UsageError, match=r"corpus\.chat_template = true"):
        Renderer(WordTokenizer(None), True, {})
    with pytest.raises(UsageError, match=r"corpus\.chat_template_arguments\.moods: .* does not read"):
        Renderer(WordTokenizer(), None, {"moods": True})
    with pytest.raises(UsageError, match="chats and turns need a chat template"):
        Renderer(WordTokenizer(None), None, {}).text(CHAT)
    with pytest.raises(BadRow, match="chat template failed: no clowns"):
        Renderer(WordTokenizer(), None, {}).text(clown)


WEATHER = {"type": "function", "function": {"name": "weather", "description": None}}


class ToolTokenizer(WordTokenizer):
    """Its template lists the names of the tools."""

    def apply_chat_template(self, conversation: Any, *, tools: Any = (), **kw: Any) -> str:
        names = [tool["function"]["name"] for tool in tools]
        return "\n".join([*names, super().apply_chat_template(conversation, **kw)])


@pytest.mark.parametrize("tools", [[WEATHER], json.dumps([WEATHER])], ids=["list", "JSON text"])
def test_tools_of_a_row_reach_the_template(tools: Any) -> None:
    """As they are; they replace those in `chat_template_arguments`, and a row without tools keeps these."""
    found = parse_row({"messages": [{"role": "user", "content": "a b"}], "tools": tools}, SOURCE)
    renderer = Renderer(ToolTokenizer(), None, {"tools": [{"function": {"name": "shared"}}]})

    assert (WEATHER,) == found.facts.tools
    assert "weather\n<user> a b\n<assistant>" == renderer.text(found)[0]
    assert "shared\n<user> a b\n<assistant>" == renderer.text(CHAT)[0]


def test_tools_that_cannot_be_rendered_are_refused() -> None:
    """A template that ignores tools, a plain prompt without a template, and what is not a list of schemas."""
    ignoring = WordTokenizer()
    ignoring.apply_chat_template = lambda conversation, **kw: "the same"  # type: ignore[method-assign]
    with_tools = replace(CHAT, facts=RowFacts((WEATHER,)))
    with pytest.raises(BadRow, match=r"chat template without tools: .* set tools_field to null"):
        Renderer(ignoring, None, {}).text(with_tools)
    with pytest.raises(BadRow, match="tools without a chat template"):
        Renderer(WordTokenizer(None), None, {}).text(replace(PLAIN, facts=RowFacts((WEATHER,))))
    for tools in ("{", "3", 3, ["weather"], [{"a": {1}}]):
        with pytest.raises(BadRow, match="bad tools"):
            parse_row({"prompt": "a", "tools": tools}, SOURCE)
    assert () == parse_row({"prompt": "a", "tools": 3}, PromptSource(path="p", tools_field=None)).facts.tools


def test_a_reason_is_one_line_whatever_a_column_is_called() -> None:
    with pytest.raises(BadRow) as caught:
        parse_row({"a\u2028b": " "}, PromptSource(path="p", prompt_field="a\u2028b"))
    assert 1 == len(str(caught.value).splitlines())


EVERY = PromptSource(path="p.jsonl", every_turn=True)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_every_question_of_a_chat_is_asked() -> None:
    """The messages between the answers, in order; answers are counted and dropped, also at the end."""
    chat = [
        _said("system", "be kind"),
        _said("user", "one"),
        _said("assistant", "1"),
        _said("user", "two"),
        _said("user", "two, please"),
        _said("assistant", "2"),
        _said("assistant", "2!"),
        _said("user", "three"),
        _said("assistant", "3"),
    ]
    found = parse_row({"messages": chat}, EVERY)

    assert (_said("system", "be kind"), _said("user", "one")) == found.messages
    assert ((_said("user", "two"), _said("user", "two, please")), (_said("user", "three"),)) == found.follow_ups
    assert (4, 0) == (found.dropped_answers, found.dropped_turns)


def test_a_chat_ends_where_a_tool_would_answer() -> None:
    """The target may not have called the tool."""
    chat = [
        _said("user", "one"),
        _said("assistant", "1"),
        _said("user", "weather?"),
        _said("assistant", "<tool_call>"),
        _said("tool", "rain"),
        _said("assistant", "rain"),
        _said("user", "thanks"),
    ]
    found = parse_row({"messages": chat}, EVERY)

    assert ((_said("user", "weather?"),),) == found.follow_ups
    assert 2 == found.dropped_turns


def test_every_turn_of_a_list_is_asked() -> None:
    """Spec-Bench rows; a later turn that is not text is named by its place."""
    found = parse_row({"turns": ["one", "two", "three"]}, EVERY)

    assert ((_said("user", "one"),), 0) == (found.messages, found.dropped_turns)
    assert ((_said("user", "two"),), (_said("user", "three"),)) == found.follow_ups
    with pytest.raises(BadRow, match=r"'turns\[2\]' is empty"):
        parse_row({"turns": ["one", " "]}, EVERY)


def test_a_chat_that_an_answer_begins_is_no_prompt() -> None:
    """It has no first question; without `every_turn` the same chat ends with a question."""
    chat = [_said("assistant", "hello"), _said("user", "one")]

    assert () == parse_row({"messages": chat}, SOURCE).follow_ups
    with pytest.raises(BadRow, match="'messages' begins with an assistant message: no user message before it"):
        parse_row({"messages": chat}, EVERY)


def test_a_chat_is_compared_by_all_its_questions() -> None:
    """Two chats that differ in the greeting and then ask the same are near-duplicates and stay in one cluster."""
    found = parse_row({"turns": ["hello", "what is a draft?"]}, EVERY)

    assert "hello\nwhat is a draft" == found.comparison_text


def test_nulls_go_where_they_came_from(tmp_path: Path) -> None:
    """Arrow fills structs, so those of Parquet are taken out however deep; JSON says null itself, also as a text in Parquet."""
    schema = {"type": "function", "function": {"name": "f", "parameters": {"limit": {"default": None}}}}
    calls = [[{"function": {"name": "f", "arguments": {name: 1}}}] for name in ("a", "b")]
    asked, of_tool = _said("user", "q"), _said("tool", "r")
    rows = [
        {"messages": [asked, _said("assistant", "") | {"tool_calls": one}, of_tool], "tools": json.dumps([schema])}
        for one in calls
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("p.parquet", "p.jsonl"):
        reader = SourceReader(0, SOURCE, tmp_path / name)
        found = [parse_row(row.value, reader.source) for row in reader]
        assert calls == [prompt.messages[1]["tool_calls"] for prompt in found]
        assert [(schema,)] * 2 == [prompt.facts.tools for prompt in found]


def test_times_within_messages_are_read(tmp_path: Path) -> None:
    """As text; the column of a row's time stays a time."""
    day = datetime(2026, 11, 26, tzinfo=UTC)
    rows = [{"created": day, "messages": [_said("user", "q") | {"at": at}]} for at in (day, None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    reader = SourceReader(0, PromptSource(path="p", since="14d"), tmp_path / "p.parquet")
    found = [row.value for row in reader]
    messages = [parse_row(value, SOURCE).messages[0] for value in found]
    assert [_said("user", "q") | {"at": "2026-11-26T00:00:00+00:00"}, _said("user", "q")] == messages
    assert [day, day] == [value["created"] for value in found]


@pytest.mark.parametrize(
    ("name", "role"), [("text", "user"), ("message", "user"), ("parts", "assistant"), ("value", "assistant")]
)
def test_a_message_with_its_text_under_another_name_is_named(name: str, role: str) -> None:
    """It is not empty."""
    chat = [{"role": role, name: "x"}, {"role": "user", "content": "q"}]
    with pytest.raises(BadRow, match=rf"'messages\[1\]' has no content, and its text in `{name}`"):
        parse_row({"messages": chat}, PromptSource(path="p"))
