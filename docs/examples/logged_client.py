"""Logs what an `openai` client, or any other client on httpx, sends and receives: one JSON line for each request.

    log = RequestLog("/var/log/llm")
    client = openai.OpenAI(base_url=URL, http_client=httpx.Client(transport=LoggedTransport(log)))
    client.chat.completions.create(..., extra_body={"return_token_ids": True})

A proxy that forwards requests with httpx logs with the same transports. Needs httpx, and request_log.py beside it.
"""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from request_log import PATHS, SESSION, RequestLog


class _Kept:
    """The bytes of a response as they pass, which are logged at its end."""

    def __init__(self, log: RequestLog, request: httpx.Request, begun: float) -> None:
        self._log, self._begun = log, begun
        self._asked = request.content
        self._group = request.headers.get(SESSION)
        self._parts, self._first = list[bytes](), list[float]()

    def add(self, part: bytes) -> bytes:
        self._first.append(time.time())
        self._parts.append(part)
        return part

    def end(self) -> None:
        """Logs it, once: a client closes a stream that it has read to the end, or that it no longer wants."""
        if not self._parts:
            return
        self._log.keep(self._asked, b"".join(self._parts), self._begun, self._first[0], self._group)
        self._parts.clear()


class _Stream(httpx.SyncByteStream):
    def __init__(self, stream: Any, kept: _Kept) -> None:
        self._stream, self._kept = stream, kept

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield self._kept.add(part)

    def close(self) -> None:
        self._stream.close()
        self._kept.end()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, stream: Any, kept: _Kept) -> None:
        self._stream, self._kept = stream, kept

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield self._kept.add(part)

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._kept.end()


class LoggedTransport(httpx.HTTPTransport):
    """For httpx.Client(transport=...)."""

    def __init__(self, log: RequestLog, **options: Any) -> None:
        super().__init__(**options)
        self._log = log

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        begun = time.time()
        response = super().handle_request(_uncompressed(request))
        if _is_logged(request, response):
            response.stream = _Stream(response.stream, _Kept(self._log, request, begun))
        return response


class AsyncLoggedTransport(httpx.AsyncHTTPTransport):
    """For httpx.AsyncClient(transport=...)."""

    def __init__(self, log: RequestLog, **options: Any) -> None:
        super().__init__(**options)
        self._log = log

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        begun = time.time()
        response = await super().handle_async_request(_uncompressed(request))
        if _is_logged(request, response):
            response.stream = _AsyncStream(response.stream, _Kept(self._log, request, begun))
        return response


def _is_logged(request: httpx.Request, response: httpx.Response) -> bool:
    return response.status_code == 200 and request.url.path.endswith(PATHS)


def _uncompressed(request: httpx.Request) -> httpx.Request:
    """The transport sees bytes as they come: it asks for plain ones."""
    request.headers["accept-encoding"] = "identity"
    return request
