"""All replicas at once over HTTP: what a page gives, and the line that is said of each thing that can be wrong."""

import asyncio
import contextlib
import gzip
import random
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline.config.watch import WatchConfig
from pipeline.errors import UsageError
from pipeline.watch.scraping import Scrape, Scraper
from tests.standin_metrics import Answer, CountingEngine, showing

TOKEN = "sk-canary-0123456789"


def _page() -> str:
    engine = CountingEngine("vllm")
    engine.decode(10, (7, 5, 2))
    return engine.page()


def _scrape(*urls: str, engine: Any = "vllm", **settings: Any) -> list[Scrape]:
    config = WatchConfig.model_validate({"endpoints": urls, "timeout_seconds": 5.0} | settings)
    return list(Scraper(config, engine).scrape())


def _always(status: int = 200, body: str | bytes = "", **headers: str) -> Callable[[str, Mapping[str, str]], Answer]:
    raw = body.encode() if isinstance(body, str) else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda path, asked: (status, named, raw)


def test_every_replica_is_read_and_faults_are_told() -> None:
    """In the order of the config; one that is down or sends something else stops no other."""
    with showing(_always(body=_page())) as good, showing(_always(body="<html></html>\n")) as bad:
        found = _scrape(bad, good, "http://127.0.0.1:9")
    assert [False, True, False] == [one.page is not None for one in found]
    assert found[0].problem.startswith(f"{bad}: it answers with an HTML page")
    assert "http://127.0.0.1:9: cannot connect: Connection refused" == found[2].problem


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            _always(404, "no"),
            "HTTP 404: there is no /metrics (`--disable-log-stats` must not be set; watch.engine is vllm)",
        ),
        (_always(401), "HTTP 401: set watch.key_variable"),
        (_always(302, Location="http://user:pw@elsewhere"), "it redirects /metrics"),
        (_always(302, Location="file:///etc/passwd"), "it redirects /metrics"),
        (_always(302, Location="http://h:99999/"), "it redirects /metrics"),
        (_always(307, Location="/metrics"), "HTTP 307: it redirects"),
        (_always(307, Location="/other"), "HTTP 307: it redirects"),
        (_always(308, Location="//elsewhere/metrics/"), "HTTP 308: it redirects"),
        (_always(500, "<html>"), "HTTP 500"),
        (
            _always(400, '{"error":{"message":"model name is missing"}}'),
            'HTTP 400: {"error":{"message":"model name is missing"}}',
        ),
        (_always(body=b"\xff\xfe\n"), "not UTF-8 at byte 1"),
        (_always(body="x" * (9 << 20)), "larger than 8,388,608 bytes"),
        (_always(body=gzip.compress(bytes(1 << 25)), Content_Encoding="gzip"), "larger than 8,388,608 bytes"),
        (_always(body="x", Content_Encoding="br"), "packed as 'br'"),
        (_always(body=_page(), Content_Length="99999"), "not enough data"),
        (_always(body=_page() + 'vllm:num_requests_running{model_name="http://u:pw@h"} NaN\n'), "several models"),
        (lambda path, asked: None, "Server disconnected"),
    ],
)
def test_faults(answer: Callable[[str, Mapping[str, str]], Answer | None], said: str) -> None:
    """Each is one line that begins with the endpoint."""
    with showing(answer) as url:
        (found,) = _scrape(url)
    assert found.page is None
    assert found.problem.startswith(f"{url}: ")
    assert said.lower() in found.problem.lower()
    assert 1 == len(found.problem.splitlines())
    assert "pw" not in found.problem


def test_a_redirect_of_the_server_to_itself_is_followed() -> None:
    """Once, as from /metrics to /metrics/, which Starlette does for what is mounted there."""
    with showing(
        lambda path, asked: (
            (200, {}, _page().encode()) if path == "/metrics/" else (307, {"Location": "/metrics/"}, b"")
        )
    ) as url:
        assert _scrape(url)[0].page is not None


def test_a_url_with_the_path_of_the_page() -> None:
    """As it stands in a config of Prometheus."""
    with showing(_always(404)) as url:
        assert (
            f"{url}/metrics: HTTP 404: /metrics is added to the URL; write the URL without it"
            == _scrape(f"{url}/metrics")[0].problem
        )


def test_the_model_is_asked_for_where_no_label_has_it() -> None:
    """llama.cpp's router has a page for each model."""
    engine, paths = CountingEngine("llama.cpp"), list[str]()
    engine.decode(10, (7, 5, 2))

    def answer(path: str, asked: Mapping[str, str]) -> Answer:
        paths.append(path)
        return 200, {}, engine.page().encode()

    with showing(answer) as url:
        assert _scrape(url, engine="llama.cpp", model="a/b c")[0].page is not None
        assert _scrape(url, engine="llama.cpp")[0].page is not None
    assert ["/metrics?model=a/b%20c", "/metrics"] == paths


def test_pages_packed_though_not_asked_for() -> None:
    """Some gateways pack anyway."""
    with showing(_always(body=gzip.compress(_page().encode()), Content_Encoding="gzip")) as url:
        assert _scrape(url)[0].page is not None


def test_a_slow_replica_holds_up_nothing_beyond_the_timeout() -> None:
    """It is told, and the others are read."""
    stop = threading.Event()

    def slow(path: str, asked: Mapping[str, str]) -> None:
        stop.wait(20)

    with showing(slow) as url, showing(_always(body=_page())) as good:
        begun = time.monotonic()
        found = _scrape(url, good, timeout_seconds=0.5)
        stop.set()
    assert f"{url}: no complete page within 0.5 s" == found[0].problem
    assert found[1].page is not None
    assert time.monotonic() - begun < 15  # and not 20: a guard against waiting without an end


def test_the_token_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment; a server that repeats it puts it into no message."""

    def answer(path: str, asked: Mapping[str, str]) -> Answer:
        assert "/metrics" == path
        if asked.get("authorization") == f"Bearer {TOKEN}":
            return 200, {}, _page().encode()
        return 401, {}, b""

    monkeypatch.setenv("ENGINE_KEY", TOKEN)
    line = f'vllm:num_requests_running{{model_name="target",z="{"z" * 20}{TOKEN}"}} NaN\n'
    with showing(answer) as url, showing(_always(body=_page() + line)) as telling, showing(_always(401)) as refusing:
        good, told, refused = _scrape(url, telling, refusing, key_variable="ENGINE_KEY")
    assert good.page is not None
    assert "[toke" in told.problem
    assert TOKEN[:5] not in told.problem
    assert refused.problem.endswith("HTTP 401: the token in ENGINE_KEY is not accepted")


@pytest.mark.parametrize("value", ["", "two\nlines", "é"])
def test_a_token_that_cannot_be_sent(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when the reader is made, and not at each look."""
    monkeypatch.setenv("ENGINE_KEY", value)
    with pytest.raises(UsageError, match=r"watch\.key_variable"):
        _scrape("http://127.0.0.1:9", key_variable="ENGINE_KEY")


def test_other_engines_have_their_own_path() -> None:
    """TensorRT-LLM's `/metrics` is JSON."""
    engine = CountingEngine("tensorrt-llm")
    engine.decode(10, (7, 5, 2))

    def answer(path: str, asked: Mapping[str, str]) -> Answer:
        return (200, {}, engine.page().encode()) if path == "/prometheus/metrics" else (404, {}, b"")

    with showing(answer) as url:
        assert _scrape(url, engine="tensorrt-llm")[0].page is not None


def test_a_unix_socket(tmp_path: Path) -> None:
    """`unix:///path` is read as any other."""
    ready, stop = threading.Event(), threading.Event()
    socket = tmp_path / "engine"

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/metrics", _metrics)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    async def _metrics(request: web.Request) -> web.Response:
        return web.Response(text=_page())

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    found = _scrape(f"unix://{socket}", f"unix://{tmp_path}/none")
    stop.set()
    thread.join()
    assert found[0].page is not None
    assert found[1].problem.endswith("cannot connect: No such file or directory")


def test_no_endpoints() -> None:
    """Nothing is asked where only a log is watched."""
    assert [] == _scrape()


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_answers_are_read_or_told(count: int) -> None:
    """Whatever bytes come over the connection, headers included."""
    rng, whole = random.Random(37), _page().encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(whole)
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(whole), whole)

    def answer() -> bytes:
        found = bytearray(rng.choice((head + whole, chunks)))
        for _ in range(rng.choice((0, 1, 2, 10))):
            at = rng.choice((rng.randrange(100), rng.randrange(len(found))))
            found[at : at + rng.choice((0, 1, 50, 10**6))] = rng.choice(
                (b"", b"\r\n", b"\x00", b"\xff", b"9" * 9, b"%" * 9000)
            )
        return bytes(found)

    with listening(answer) as url:
        found = [
            one
            for _ in range(count // 100)
            for one in _scrape(*(f"{url}/{number}" for number in range(100)), timeout_seconds=0.5)
        ]
    assert count == len(found)
    assert 0 < sum(one.page is not None for one in found) < count
    assert all(1 == len(one.problem.splitlines()) for one in found if one.page is None)


@contextlib.contextmanager
def listening(answer: Callable[[], bytes]) -> Iterator[str]:
    """A server that reads the beginning of a request, sends these bytes and closes the connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(1 << 16)
                self.request.sendall(answer())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 128

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
