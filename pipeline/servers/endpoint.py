"""One server of the target over HTTP: sends JSON, returns JSON, and states in one line what went wrong. Torch-free.

Does not retry; `pool.py` does. Does not depend on what is asked.
"""

import asyncio
import errno
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp

from pipeline.config.credentials import masked
from pipeline.config.server import UNIX, EndpointConfig, ServerConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.servers import answer_bytes
from pipeline.servers.answer_bytes import TooMuch
from pipeline.servers.failures import FAILURES, is_certificate, reason
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

_QUOTED = 200  # characters of an answer that is quoted in a message
_READ = 1 << 16  # bytes of an answer that is not JSON, and of an error
_FACTS = 1 << 23  # bytes of what a server reports of itself: models, properties, a chat template
_LONGEST_PAUSE = 86_400.0
_GET_SECONDS = 30.0  # for what needs no computation
# Idle connections are closed before the server does it (uvicorn: after 5 s). Where this process is busy, the server is faster.
_IDLE_SECONDS = 3.0
_REUSED = "reused"  # key of a request's trace: whether it went over a connection that had been used before


class Unavailable(UnderstudyError):
    """The endpoint gave no answer, or none that can be read. It may give one later."""


class AnswerLost(Unavailable):
    """The request was sent, but no whole answer came: the server may have computed it."""


class Overloaded(Unavailable):
    """The endpoint asks for a pause (429, or 503 with Retry-After). `seconds` is None where it does not state how long."""

    def __init__(self, message: str, seconds: float | None) -> None:
        super().__init__(message)
        self.seconds = seconds


class RequestRefused(UsageError):
    """The endpoint answers, and refuses this request. Asked again, it would refuse again."""


class Endpoint:
    """A connection to one server. To be used within one event loop: `await open()` first, `await close()` at the end.
    `section`: where the config names it."""

    def __init__(self, config: EndpointConfig, settings: ServerConfig, section: str = "generate.server") -> None:
        self.url, self.weight = config.url, config.weight
        self.capacity = max(1, round(settings.concurrency * config.weight))
        self._timeout, self._key_variable, self._section = settings.timeout_seconds, settings.key_variable, section
        self._session: aiohttp.ClientSession | None = None
        self._token = ""

    async def open(self) -> None:
        """UsageError where the environment variable with the token is not set."""
        is_unix = self.url.startswith(UNIX)
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(self.url.removeprefix(UNIX), limit=0, keepalive_timeout=_IDLE_SECONDS)
            if is_unix
            else aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ttl_dns_cache=60, ssl=self._tls())
        )
        self._base = "http://localhost" if is_unix else self.url
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"Accept-Encoding": "identity"} | self._headers(),
            auto_decompress=False,
            trace_configs=[trace],
        )

    def _tls(self) -> ssl.SSLContext | bool:
        """Made when it is needed: SSL_CERT_FILE is read then, and reading the authorities takes a while."""
        return ssl.create_default_context() if self.url.startswith("https:") else True

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Any:
        """The JSON at `path`, which a server has at hand. Raises as `post` does."""
        return await self._ask("GET", path, None, min(_GET_SECONDS, self._timeout), _FACTS)

    async def post(self, path: str, body: dict[str, Any], most: int = _FACTS) -> Any:
        """The answer's JSON, of at most `most` bytes. Unavailable, AnswerLost, Overloaded or RequestRefused."""
        return await self._ask("POST", path, body, self._timeout, most)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, seconds: float, most: int) -> Any:
        """`seconds` count to the last byte, so an answer that comes in small pieces ends too."""
        try:
            async with asyncio.timeout(seconds):
                status, headers, raw = await self._received(method, path, body, seconds, most)
        except TimeoutError:
            raise AnswerLost(f"{self.url}: no complete answer within {seconds:g} s") from None
        except TooMuch as error:
            raise AnswerLost(f"{self.url}: {error}") from None
        except FAILURES as error:
            raise self._failed(error) from None
        if status == 200:
            return self._json(raw)
        if 300 <= status < 400:
            elsewhere = self._brief(headers.get("Location", "nowhere"))
            raise UsageError(
                f"{self.url}: HTTP {status}: it redirects {path} to {elsewhere}; write the URL of the server itself"
            )
        raise self._error(status, headers.get("Retry-After"), path, raw)

    async def _received(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float, most: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. A request over an idle connection that the server was just closing is sent again: no byte of
        an answer came."""
        assert self._session is not None  # opened
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(_GET_SECONDS, seconds))
        while True:
            trace = dict[str, bool]()
            try:
                async with self._session.request(
                    method,
                    self._base + path,
                    json=body,
                    allow_redirects=False,
                    timeout=timeout,
                    trace_request_ctx=trace,
                ) as answer:
                    raw = await answer_bytes.read(answer, most if answer.status == 200 else _READ)
                    return answer.status, answer.headers, raw
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if _REUSED not in trace or not _is_stale(error):
                    raise

    def _failed(self, error: Exception) -> UnderstudyError:
        said = self._brief(reason(error))
        if is_certificate(error):
            return UsageError(f"{self.url}: {said}; set SSL_CERT_FILE to the file of the authority that signed it")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # no other endpoint would help
            return UnderstudyError(
                f"{self.url}: {said}: each request at a time needs a connection; raise the limit (ulimit -n) or lower the "
                f"concurrency in {self._section}, and run again"
            )
        return (Unavailable if isinstance(error, aiohttp.ClientConnectorError) else AnswerLost)(f"{self.url}: {said}")

    @reads_own_files("an answer of a server, not a file (tests/unit/servers)")
    def _json(self, raw: bytes) -> Any:
        try:
            return parse_json(raw, foreign=True)
        except ValueError:
            raise AnswerLost(f"{self.url}: the answer is not valid JSON: {self._quoted(raw)}") from None

    def _error(self, status: int, retry_after: str | None, path: str, raw: bytes) -> UnderstudyError:
        said = f"{self.url}: HTTP {status}: {self._message(raw)}"
        if status == 429 or (status == 503 and retry_after is not None):
            return Overloaded(said, _seconds(retry_after))
        if status in (401, 403):
            variable = self._key_variable or "KEY"
            hint = (
                "its token is not accepted" if self._key_variable else f"set {self._section}.key_variable to its name"
            )
            return UsageError(f"{said}; the gateway requires a token from the environment variable {variable}: {hint}")
        if status == 404 and path.startswith("/v1/models"):
            return UsageError(f"{said}; no server of the OpenAI API answers there")
        if status >= 500 or status in (408, 425):
            return Unavailable(said)
        return RequestRefused(said)

    def _headers(self) -> dict[str, str]:
        if self._key_variable is None:
            return {}
        token = os.environ.get(self._key_variable, "").strip()
        if not token:
            raise UsageError(
                f"{self._section}.key_variable: the environment variable {self._key_variable} is not set; it holds the token of "
                "the server"
            )
        if not token.isascii() or not token.isprintable():
            raise UsageError(
                f"{self._section}.key_variable: the token in {self._key_variable} has characters that no HTTP header can contain"
            )
        self._token = token
        return {"Authorization": f"Bearer {token}"}

    @reads_own_files("an answer of a server, not a file (tests/unit/servers)")
    def _message(self, raw: bytes) -> str:
        """The message in an error as OpenAI's API sends it; else the beginning of the answer."""
        try:
            answer = parse_json(raw, foreign=True)
        except ValueError:
            return self._quoted(raw)
        inner = answer.get("error", answer) if isinstance(answer, dict) else answer
        message = inner.get("message") if isinstance(inner, dict) else inner
        return self._brief(str(message)) if message else self._quoted(raw)

    def _quoted(self, raw: bytes) -> str:
        return repr(self._brief(raw[:_READ].decode("utf-8", errors="replace"))) if raw else "an empty answer"

    def _brief(self, text: str) -> str:
        """The beginning of what a server said, in one line. A gateway may repeat the token that it was sent, and send elsewhere
        with another one in the URL."""
        text = masked(" ".join((text.replace(self._token, "[token]") if self._token else text).split()))
        return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx[_REUSED] = True


def _is_stale(error: aiohttp.ClientError) -> bool:
    """Whether the connection ended before the first byte of an answer. A refused connection is another error."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is the part of the headers that came
    return isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds: a number, or a date (RFC 9110, section 10.2.3). None for neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            at = parsedate_to_datetime(retry_after)
        except (ValueError, OverflowError):  # a year, second or zone of many digits
            return None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    return min(max(seconds, 0.0), _LONGEST_PAUSE) if seconds == seconds else None


def now() -> float:
    """Seconds of a clock that only moves forward."""
    return time.monotonic()
