"""docs/examples of docs/logs.md: streams are joined, rows are written and read, the middleware and the LiteLLM callback log."""

import asyncio
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import parse_row

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1.0}
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "Ho"}, "finish_reason": "stop", "token_ids": [5, 6]}]
}
_BEGUN = datetime.now(UTC).timestamp()

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="runs in a checkout")


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module request_log; its directory is importable, and REQUEST_LOG is set."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("REQUEST_LOG", str(tmp_path / "log"))
    yield importlib.import_module("request_log")
    for name in ("request_log", "litellm_log", "logged_client"):
        sys.modules.pop(name, None)


def _rows(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(place.glob(".requests-*")) for line in path.read_text().splitlines()]


def _chunk(delta: dict[str, Any], ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "token_ids": ids, **more}]}


def _called(index: int, arguments: str, **first: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": first["name"]} if first else {})
    return {"tool_calls": [{"index": index, "function": function} | ({"id": first["id"]} if first else {})]}


STREAM = [
    _chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2]},
    _chunk({}, [10]),
    _chunk({"reasoning": "\nLook "}, [11, 12]),
    _chunk({"reasoning": "it up."}, [13]),
    _chunk({"content": None} | _called(0, "", id="a", name="f"), [14]),
    _chunk(_called(0, '{"x"'), [15]),
    _chunk(_called(0, ": 1}"), [16]),
    _chunk(_called(1, "{}", id="b", name="g"), [17]),
    _chunk({}, [2], finish_reason="tool_calls"),
    {"object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 9}, "metrics": {"n": 1}},
]


def test_a_stream_is_joined_to_the_answer_without_streaming(examples: Any) -> None:
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in STREAM) + "data: [DONE]\n\n"
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": "", "reasoning": "\nLook it up.", "tool_calls": calls}
    ids = [10, 11, 12, 13, 14, 15, 16, 17, 2]
    assert {
        "object": "chat.completion",
        "prompt_token_ids": [1, 2],
        "usage": {"completion_tokens": 9},
        "metrics": {"n": 1},
        "choices": [{"index": 0, "message": message, "token_ids": ids, "finish_reason": "tool_calls"}],
    } == examples.answer_of(body.encode())


def test_pieces_of_calls_may_alternate(examples: Any) -> None:
    pieces = [_called(0, "[", id="a", name="f"), _called(1, "{", id="b", name="g"), _called(0, "]"), _called(1, "}")]
    (choice,) = examples.join_chunks(map(_chunk, pieces))["choices"]
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ["[]", "{}"]


def test_a_stream_of_texts_is_joined(examples: Any) -> None:
    """Of the completions API."""
    chunks = [
        {"choices": [{"index": 0, "text": text, "finish_reason": end}]} for text, end in (("a", None), ("b", "stop"))
    ]
    assert [{"index": 0, "text": "ab", "finish_reason": "stop"}] == examples.join_chunks(chunks)["choices"]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (ASKED, {"choices": [{"message": {"content": "a"}, "finish_reason": None}]}),
        (ASKED, {}),
        ({"prompt": [1, 2]}, ANSWER),
    ],
)
def test_what_is_no_whole_answer_to_a_text_is_not_logged(
    examples: Any, tmp_path: Path, asked: dict[str, Any], answer: dict[str, Any]
) -> None:
    """Streams that broke off; and requests of token ids, which Understudy itself sends."""
    examples.RequestLog(tmp_path / "log").write(asked, answer, _BEGUN, None, _BEGUN + 1)
    assert {} == examples.answer_of(b'data: {"choices": [{"del')
    assert [] == _rows(tmp_path / "log")


def test_an_hour_is_shown_when_it_is_over(examples: Any, tmp_path: Path) -> None:
    """Understudy reads no hidden files, and stops when a file grows while it is read. Others may not read the log."""
    log = examples.RequestLog(tmp_path / "log")
    (tmp_path / "log" / ".requests-2000-01-01T23-7.jsonl").write_text("{}\n")
    of_another = tmp_path / "log" / f".requests-{datetime.now(UTC):%Y-%m-%dT%H}-another.jsonl"
    of_another.write_text("{}\n")
    log.write(ASKED, ANSWER, _BEGUN, _BEGUN + 0.5, _BEGUN + 2, "s1")
    of_another.unlink()
    (row,) = _rows(tmp_path / "log")
    assert (0.5, 2.0, "s1") == (row["ttft"], row["duration"], row["group"])
    assert ["requests-2000-01-01T23-7.jsonl"] == [path.name for path in (tmp_path / "log").glob("[!.]*")]
    (now,) = (tmp_path / "log").glob(".requests-*")
    assert (0o600, 0o700) == (now.stat().st_mode & 0o777, (tmp_path / "log").stat().st_mode & 0o777)


def test_a_field_of_a_client_labels_nothing(examples: Any, tmp_path: Path) -> None:
    """The request has a key of its own, and of it only fields of requests are read."""
    given = {"domain": "zzz", "group": "g", "ttft": 9, "created": 1, "finish_reason": "stop", "metrics": {"n": 1}}
    examples.RequestLog(tmp_path / "log").write(ASKED | given, ANSWER, _BEGUN, None, _BEGUN + 1)
    (row,) = _rows(tmp_path / "log")
    assert {"request", "response", "created", "duration"} == set(row)
    (path,) = (tmp_path / "log").glob(".requests-*")
    (read,) = SourceReader(0, PromptSource(path="p"), path)
    assert {"messages", "temperature", "response", "created", "duration"} == set(read.value)
    assert "default" == parse_row(read.value, PromptSource(path="p")).domain


def _served(
    examples: Any, body: bytes, parts: list[bytes], path: str = "/v1/chat/completions", status: int = 200
) -> tuple[bytes, list[bytes]]:
    """What the application got through the middleware, and what the client."""
    seen, sent = list[bytes](), list[bytes]()

    async def application(
        scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        seen.append((await receive())["body"])
        if path in examples.PATHS:
            assert str(len(seen[0])).encode() == dict(scope["headers"])[b"content-length"]
        await send({"type": "http.response.start", "status": status})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    halves = [{"body": body[:9], "more_body": True}, {"body": body[9:]}] if path in examples.PATHS else [{"body": body}]

    async def receive() -> Any:
        return {"type": "http.request", **halves.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "path": path, "headers": [(b"X-Session-Id", b"s7"), (b"content-length", b"1")]}
    asyncio.run(examples.LoggedRequests(application)(scope, receive, send))
    return seen[0], sent


def test_the_middleware_asks_for_ids_and_logs(examples: Any, tmp_path: Path) -> None:
    asked, sent = _served(examples, json.dumps(ASKED).encode(), [json.dumps(ANSWER).encode()])
    assert json.loads(asked) == ASKED | {"return_token_ids": True}
    assert json.loads(b"".join(sent)) == ANSWER
    (row,) = _rows(tmp_path / "log")
    assert (ANSWER, "s7", ASKED["messages"]) == (row["response"], row["group"], row["request"]["messages"])
    assert "ttft" not in row


def test_the_middleware_joins_streams(examples: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(examples, "time", types.SimpleNamespace(time=lambda: next(seconds)))
    parts = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in STREAM]
    asked, sent = _served(examples, json.dumps(ASKED | {"stream": True}).encode(), [*parts, b"data: [DONE]\n\n"])
    assert json.loads(asked)["stream_options"] == {"include_usage": True}
    assert b"".join(sent).startswith(b"".join(parts))
    (row,) = _rows(tmp_path / "log")
    assert len(row["response"]["choices"][0]["token_ids"]) == 9
    assert (row["ttft"], row["duration"]) == (1, len(parts) + 2)  # the first part, and after the last


def test_other_paths_and_bad_requests_pass(examples: Any, tmp_path: Path) -> None:
    for path in ("/metrics", *examples.PATHS):
        assert b"not JSON, as it came" == _served(examples, b"not JSON, as it came", [b"{}"], path, 400)[0]
    assert [] == _rows(tmp_path / "log")


_ODD_REQUESTS = (
    b"[]",
    b"7",
    b"null",
    b"[" * 5000,
    b'{"stream": true, "stream_options": 7}',
    b'{"messages": "\\ud800"}',
    b"\xff",
)
_ODD_ANSWERS = (
    b"[]",
    b"{",
    b'{"choices": 7}',
    b'{"choices": [7]}',
    b'data: {"choices": [{"delta": 7}]}\n',
    b"[" * 5000,
)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        *((odd, json.dumps(ANSWER).encode()) for odd in _ODD_REQUESTS),
        *((json.dumps(ASKED).encode(), odd) for odd in _ODD_ANSWERS),
    ],
)
def test_nothing_that_a_client_or_an_engine_sends_raises_in_the_middleware(
    examples: Any, tmp_path: Path, request_: bytes, answer: bytes
) -> None:
    """The server would end the connection with a traceback, for an answer that the client had."""
    seen, sent = _served(examples, request_, [answer])
    assert answer in sent
    assert seen == request_ or json.loads(seen)["return_token_ids"]
    assert [] == _rows(tmp_path / "log")


def test_a_stream_of_a_tool_call_that_is_far_away_is_not_logged(examples: Any, tmp_path: Path) -> None:
    """A place is made for each call before it, in the memory of the server."""
    stream = [_chunk(_called(2000, "{}", id="a", name="f"), finish_reason="stop")]
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in stream).encode()
    assert {} == examples.answer_of(body)


def test_a_full_disk_costs_rows_and_is_said_once(
    examples: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(examples.RequestLog, "_append", full)
    assert (
        json.dumps(ANSWER).encode() in _served(examples, json.dumps(ASKED).encode(), [json.dumps(ANSWER).encode()])[1]
    )
    assert "request_log: a request is not logged: OSError: [Errno 28] No space left" in capsys.readouterr().err


@pytest.mark.parametrize("request_", [b"", b"[]", b"\xff", b'{"messages": [], "stream": true}'], ids=range(4))
def test_no_row_raises_in_what_logs_it(examples: Any, tmp_path: Path, request_: bytes) -> None:
    """The middleware, and transports inside of an application: an error would be the client's."""
    log = examples.RequestLog(tmp_path / "log")
    (tmp_path / "log").rmdir()
    log.keep(request_, b'{"choices": [{"finish_reason": "stop"}]}', 0.0, None)


@pytest.fixture
def logger(examples: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The callback, in a LiteLLM that has its base class alone."""
    module = types.ModuleType("litellm.integrations.custom_logger")
    module.CustomLogger = type("CustomLogger", (), {"__init__": lambda self: None})  # type: ignore[attr-defined]
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "litellm.integrations.custom_logger", module)
    return importlib.import_module("litellm_log").logger


@pytest.mark.parametrize(
    "known",
    [{}, {"additional_args": {"complete_input_dict": "text"}}, {"additional_args": {"complete_input_dict": ASKED}}],
)
def test_nothing_raises_in_the_callback_of_litellm(logger: Any, tmp_path: Path, known: dict[str, Any]) -> None:
    """Requests of other forms, and a directory that is gone."""
    (tmp_path / "log").rmdir()
    now, response = datetime.now(UTC), types.SimpleNamespace(model_dump=lambda: ANSWER)
    asyncio.run(logger.async_log_success_event(known, response, now, now))


def test_the_callback_of_litellm_logs(logger: Any, tmp_path: Path) -> None:
    """The server's own answer; of a stream, what LiteLLM joined."""
    begun, response = (
        datetime.fromtimestamp(_BEGUN, UTC),
        types.SimpleNamespace(model_dump=lambda: ANSWER | {"joined": True}),
    )
    originals = ((False, json.dumps(ANSWER)), (True, "first stream response received"), (True, '["a", "chunk"]'))
    for streamed, original in originals:
        known = {
            "additional_args": {"complete_input_dict": ASKED | {"stream": streamed}},
            "litellm_params": {"proxy_server_request": {"headers": {"x-session-id": "s1"}}},
            "completion_start_time": begun,
            "original_response": original,
        }
        asyncio.run(logger.async_log_success_event(known, response, begun, begun))
    whole, stream, other = _rows(tmp_path / "log")
    assert stream["response"] == other["response"]
    assert (ANSWER, ANSWER | {"joined": True}) == (whole["response"], stream["response"])
    assert ("s1", False, True) == (whole["group"], "ttft" in whole, "ttft" in stream)


def test_the_transport_compiles() -> None:
    """httpx is no dependency; the conformance tests run it."""
    path = EXAMPLES / "logged_client.py"
    compile(path.read_text(encoding="utf-8"), str(path), "exec")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "No such file or directory"),
        ('{"request": {"messages": []}}\n', "is an engine with the OpenAI API at http://127.0.0.1:1"),
        ('{"prompt": "x"}\n', "has to have a chat in `request` of each row"),
        ("[1]\n", "has to have a chat in `request` of each row"),
        ("no json\n", "has to have a chat in `request` of each row"),
    ],
)
def test_a_log_that_cannot_be_replayed_is_a_line(rows: str | None, said: str, tmp_path: Path) -> None:
    """No engine, no file, another form: what it is and what to look at, and no traceback."""
    log = tmp_path / "log.jsonl"
    if rows is not None:
        log.write_text(rows)
    call = [sys.executable, "-S", EXAMPLES / "replay_log.py", log, "http://127.0.0.1:1", tmp_path / "out"]
    ended = subprocess.run(call, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("replay_log.py: ")
    assert said in ended.stderr
    assert 1 == len(ended.stderr.splitlines())
