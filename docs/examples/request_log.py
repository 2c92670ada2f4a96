"""A log that Understudy reads: one JSON line for each request, with the request, the answer and its times. Standard library only.

Copy this file and change what you need; docs/logs.md explains it. `LoggedRequests` is ASGI middleware, for vLLM:

    REQUEST_LOG=/var/log/llm PYTHONPATH=. vllm serve MODEL --middleware request_log.LoggedRequests
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATHS = ("/v1/chat/completions", "/v1/completions")
PERIOD = "%Y-%m-%dT%H"  # of a file, in UTC: an hour
SESSION = "x-session-id"  # the header whose value becomes `group`: requests of a session stay in one split
_MOST_CALLS = 1000  # of tools in an answer: a place for each is made
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")  # parts of a message that come in pieces


class RequestLog:
    """Appends rows to a file an hour and process in a directory. Only the user who writes it may read it.

    The file of the hour (UTC) is hidden (`.requests-YYYY-MM-DDTHH-PID.jsonl`), and so is not read by Understudy, which stops when
    a file changes while it reads. The first row of a later hour shows it (`requests-...`).
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hour, self._said = "", ""

    def keep(self, request: bytes, body: bytes, begun: float, first: float | None, group: str | None = None) -> None:
        """Writes a row of the bodies of a request and its response. The client has its answer: whatever is wrong with a request,
        an answer or the disk costs a row and a line on stderr, and raises nothing."""
        with self.raising_nothing():
            asked = json.loads(request)
            streamed = first if asked.get("stream") else None
            self.write(asked, answer_of(body), begun, streamed, time.time(), group)

    @contextlib.contextmanager
    def raising_nothing(self) -> Iterator[None]:
        """For what makes a row and writes it."""
        try:
            yield
        except Exception as error:
            self._say(f"request_log: a request is not logged: {type(error).__name__}: {error}")
        else:
            self._said = ""

    def _say(self, why: str) -> None:
        """Once in a row: a full disk is no line for each request."""
        if why != self._said:
            with contextlib.suppress(OSError):  # stderr may be on that disk
                print(why[:500], file=sys.stderr, flush=True)
        self._said = why

    def write(
        self,
        request: Mapping[str, Any],
        answer: Mapping[str, Any],
        begun: float,
        first: float | None,
        ended: float,
        group: str | None = None,
    ) -> None:
        """`request` and `answer`: the JSON of the API. Times are in seconds since 1970; `first`: that of a stream's first token.

        Not written: an answer that broke off, because the client went away; a prompt of token ids, as Understudy itself sends.
        """
        choices = answer.get("choices") or []
        if not choices or any(choice.get("finish_reason") is None for choice in choices):
            return
        if not isinstance(request.get("messages"), list) and not isinstance(request.get("prompt"), str):
            return
        # Under a key of its own: a client may send fields such as `domain` or `group`, which label rows.
        row = {"request": request, "response": answer, "created": round(begun, 3), "duration": round(ended - begun, 4)}
        if first is not None:
            row["ttft"] = round(first - begun, 4)
        if group:
            row["group"] = group
        self._append(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    def _append(self, line: bytes) -> None:
        hour = datetime.now(UTC).strftime(PERIOD)
        if hour != self._hour:
            self._show_before(hour)
            self._hour = hour
        path = self._directory / f".requests-{hour}-{os.getpid()}.jsonl"
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(line)

    def _show_before(self, hour: str) -> None:
        for path in self._directory.glob(".requests-*.jsonl"):
            if path.name < f".requests-{hour}":
                with contextlib.suppress(FileNotFoundError):  # another process was first
                    path.rename(path.with_name(path.name[1:]))


def answer_of(body: bytes) -> dict[str, Any]:
    """The answer in the body of a response: its JSON, or the joined chunks of a stream (server-sent events). Empty if the body
    broke off within JSON."""
    text = body.decode("utf-8", "replace")
    try:
        if text.lstrip().startswith("{"):
            return dict(json.loads(text))
        data = [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]
        return join_chunks(json.loads(one) for one in data if one != "[DONE]")
    except ValueError:
        return {}


def join_chunks(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The chunks of a stream as the answer that the same request has without `stream`.

    Texts, arguments of tool calls and token ids are joined; of other fields the last value that is not null stays, such as
    `finish_reason`, `usage`, `metrics` (vLLM) and `timings` (llama.cpp). Log-probabilities are left out.
    """
    answer, choices = dict[str, Any](), dict[int, dict[str, Any]]()
    for chunk in chunks:
        answer |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        for part in chunk.get("choices") or []:
            choice = choices.setdefault(part.get("index", 0), {"index": part.get("index", 0)})
            for name, value in part.items():
                if name == "delta":
                    _join_message(choice.setdefault("message", {"role": "assistant", "content": None}), value or {})
                elif name in ("text", "token_ids") and value is not None:
                    choice[name] = choice.get(name, type(value)()) + value
                elif name != "logprobs" and value is not None:
                    choice[name] = value
    for choice in choices.values():
        choice.setdefault("finish_reason", None)
    if isinstance(answer.get("object"), str):
        answer["object"] = answer["object"].removesuffix(".chunk")
    return {**answer, "choices": [choices[index] for index in sorted(choices)]}


def _join_message(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for call in value or []:
                _join_call(message.setdefault("tool_calls", []), call)
        elif name in _TEXTS and value is not None:
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _join_call(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    """The first piece of a call has its id and name, the others have arguments."""
    if delta.get("index", 0) >= _MOST_CALLS:
        raise ValueError("a tool call with an index that no answer has")
    while len(calls) <= delta.get("index", 0):
        calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[delta.get("index", 0)], delta.get("function") or {}
    call["id"] = delta.get("id") or call["id"]
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""


class LoggedRequests:
    """ASGI middleware that asks vLLM for token ids and logs each request that is answered, to the directory in REQUEST_LOG."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app, self._log = app, RequestLog(os.environ["REQUEST_LOG"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        begun, request = time.time(), _with_ids(await _body(receive))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        kept = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
        scope = {**scope, "headers": [*kept, (b"content-length", str(len(request)).encode())]}
        given, status, parts, first = [request], [0], list[bytes](), list[float]()

        async def body() -> Message:
            """The request once; then what the client sends next, which is that it has gone."""
            return {"type": "http.request", "body": given.pop()} if given else await receive()

        async def kept_and_sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            elif part := message.get("body"):
                first.append(time.time())
                parts.append(part)
            await send(message)

        await self._app(scope, body, kept_and_sent)
        if status[0] == 200:
            self._log.keep(request, b"".join(parts), begun, first[0] if first else None, headers.get(SESSION))


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _with_ids(body: bytes) -> bytes:
    """The request with `return_token_ids`, and with the usage at the end of a stream; unchanged if it is no JSON object, or one
    whose answer is the server's to say."""
    try:
        request = json.loads(body)
        request["return_token_ids"] = True
        if request.get("stream"):
            request["stream_options"] = {**(request.get("stream_options") or {}), "include_usage": True}
        return json.dumps(request).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return body
