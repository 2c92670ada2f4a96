"""The metrics pages of all replicas at once, over HTTP. Whatever is wrong with one becomes a line that names it. Torch-free."""

import asyncio
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import aiohttp
from yarl import URL

from pipeline.config.credentials import masked
from pipeline.config.server import UNIX
from pipeline.config.watch import WatchConfig
from pipeline.engines.facts import FACTS, WatchedEngine
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.servers import answer_bytes
from pipeline.servers.answer_bytes import TooMuch
from pipeline.servers.failures import FAILURES, is_certificate, reason
from pipeline.watch.exposition import NotCounters, Page, read_page

_MOST_BYTES = 1 << 23  # of a page; vLLM's has about 50 KB for each rank
_AT_ONCE = 64  # connections
_QUOTED = 200  # characters of what went wrong


@dataclass(frozen=True)
class Scrape:
    """What one endpoint gave: a page, or the line that states why there is none."""

    url: str
    page: Page | None = None
    problem: str = ""


class Scraper:
    """Reads the endpoints of `watch`. UsageError at once where the environment variable with the token is not set."""

    def __init__(self, settings: WatchConfig, engine: WatchedEngine) -> None:
        self._urls = tuple(endpoint.url for endpoint in settings.endpoints)
        self._engine, self._model = engine, settings.model
        path, query = FACTS[engine].counters.path, FACTS[engine].model_query
        self._path = path if not query or settings.model is None else f"{path}?{query}={quote(settings.model, safe='')}"
        self._seconds, self._variable = settings.timeout_seconds, settings.key_variable
        self._token = _token(self._variable)

    def scrape(self) -> Sequence[Scrape]:
        """One look at every endpoint, in their order. Takes at most `watch.timeout_seconds` for each 64 of them."""
        return asyncio.run(self._all()) if self._urls else ()

    async def _all(self) -> Sequence[Scrape]:
        free = asyncio.Semaphore(_AT_ONCE)
        # Made at each look, for SSL_CERT_FILE may have changed, and once for all: reading the authorities takes a while.
        tls = ssl.create_default_context() if any(url.startswith("https:") for url in self._urls) else None

        async def limited(url: str) -> Scrape:
            async with free:
                return await self._one(url, tls)

        return await asyncio.gather(*(limited(url) for url in self._urls))

    async def _one(self, url: str, tls: ssl.SSLContext | None) -> Scrape:
        try:
            async with asyncio.timeout(self._seconds):
                text = await self._text(url, tls)
            return Scrape(url, page=read_page(text, self._engine, self._model))
        except TimeoutError:
            why = f"no complete page within {self._seconds:g} s"
        except (NotCounters, _Refused, TooMuch) as error:
            why = str(error)
        except FAILURES as error:
            authority = "; set SSL_CERT_FILE to the file of its authority" if is_certificate(error) else ""
            why = reason(error) + authority
        return Scrape(url, problem=f"{url}: {self._brief(why)}")

    async def _text(self, url: str, tls: ssl.SSLContext | None) -> str:
        is_unix = url.startswith(UNIX)
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(url.removeprefix(UNIX))
            if is_unix
            else aiohttp.TCPConnector(ssl=True if tls is None else tls)
        )
        headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=False) as session:
            raw = await self._raw(session, URL(("http://localhost" if is_unix else url) + self._path))
        try:
            return self._without_token(raw.decode("utf-8"))  # before any part of the page is cut for a message
        except UnicodeDecodeError as error:
            raise NotCounters(f"the page is not UTF-8 at byte {error.start + 1}") from None

    async def _raw(self, session: aiohttp.ClientSession, url: URL, redirected: bool = False) -> bytes:
        """The answer at `url`, and at the place to which the same server sends once, such as from /metrics to /metrics/."""
        async with session.get(url, allow_redirects=False) as answer:
            raw = await answer_bytes.read(answer, _MOST_BYTES)
            if answer.status == 200:
                return raw
            place = _place(url, answer.headers.get("Location", ""))
            if not 300 <= answer.status < 400 or redirected or place is None or place == url:
                raise _Refused(self._refusal(answer.status, raw, url))
        return await self._raw(session, place, redirected=True)

    def _refusal(self, status: int, raw: bytes, url: URL) -> str:
        names, path = FACTS[self._engine].counters, self._path
        if url.path.removesuffix(names.path).endswith(names.path):
            return f"HTTP {status}: {names.path} is added to the URL; write the URL without it"
        if status in (401, 403):
            hint = f"the token in {self._variable} is not accepted" if self._variable else "set watch.key_variable"
            return f"HTTP {status}: {hint}"
        if status in (404, 501):
            return f"HTTP {status}: there is no {path} ({names.needs}; watch.engine is {self._engine})"
        if 300 <= status < 400:
            return f"HTTP {status}: it redirects {path}; write the URL of the server itself"
        text = raw[: 4 * _QUOTED].decode(errors="replace").strip()
        return f"HTTP {status}: {text}" if text and not text.startswith("<") else f"HTTP {status}"

    def _brief(self, text: str) -> str:
        """The answer in one line. A server may repeat the token, and send elsewhere with another one in the URL."""
        text = printable(masked(" ".join(self._without_token(text).split())))
        return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "[token]") if self._token else text


def _place(url: URL, location: str) -> URL | None:
    """Where a server sends to, if that is a place of its own; None for another server, and for what is no URL of one."""
    try:
        place = url.join(URL(location))
        return place if place.origin() == url.origin() else None
    except ValueError:  # file:/, mailto:, a port that is none
        return None


class _Refused(Exception):
    """An answer with another status than 200. The text states what to do."""


def _token(variable: str | None) -> str:
    if variable is None:
        return ""
    token = os.environ.get(variable, "").strip()
    if not token:
        raise UsageError(
            f"watch.key_variable: the environment variable {variable} is not set; it holds the token of the engines"
        )
    if not token.isascii() or not token.isprintable():
        raise UsageError(f"watch.key_variable: the token in {variable} has characters that no HTTP header can contain")
    return token
