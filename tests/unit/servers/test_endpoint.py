"""One server over HTTP: what is said when something is wrong, tokens of gateways, Unix sockets and TLS."""

import asyncio
import contextlib
import functools
import json
import resource
import shlex
import socket
import ssl
import subprocess
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pipeline.servers.endpoint as endpoint_module
from pipeline.config.server import EndpointConfig, ServerConfig
from pipeline.errors import EXIT_FAILURE, EXIT_USAGE, UnderstudyError, UsageError
from pipeline.servers.answer_bytes import TooMuch, most_bytes, read
from pipeline.servers.endpoint import AnswerLost, Endpoint, Overloaded, RequestRefused, Unavailable
from pipeline.servers.identity import Golden, Identity, new_identity
from pipeline.servers.target import ServedModel, read_model
from pipeline.store.files import write_json
from tests.served import config_of, opened
from tests.standin_server import FAULTS, StandIn, overloaded, running

CANARY = "sk-canary-0123456789"
BODY = {"model": "target", "prompt": [20, 21], "max_tokens": 1, "temperature": 0, "return_token_ids": True}


def _ask(url: str, path: str = "/v1/completions", body: dict[str, Any] | None = None, **settings: Any) -> Any:
    config = ServerConfig.model_validate({"timeout_seconds": 5.0, "endpoints": [url], **settings})

    async def ask() -> Any:
        async with opened(config) as endpoint:
            if path == "/v1/models":
                return await endpoint.get(path)
            return await endpoint.post(path, BODY if body is None else body)

    return asyncio.run(ask())


def _faulty(fault: Any) -> StandIn:
    return StandIn(faults=lambda number: fault)


async def _redirect(request: web.Request, raw: bytes) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://elsewhere/"})


async def _redirect_with_a_token(request: web.Request, raw: bytes) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": f"http://user:{CANARY}@elsewhere/v1?token={CANARY}"})


def _as_bytes(sent: bytes) -> Any:
    async def send(request: web.Request, raw: bytes) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(sent)
        request.transport.close()
        return web.Response()

    return send


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (FAULTS["500"], Unavailable, "HTTP 500: EngineCore died"),
        (FAULTS["HTML error"], Unavailable, "HTTP 502: '<html>Bad gateway</html>'"),
        (FAULTS["HTML"], Unavailable, "the answer is not valid JSON: '<html>Bad gateway</html>'"),
        (FAULTS["empty"], Unavailable, "the answer is not valid JSON: an empty answer"),
        (FAULTS["truncated JSON"], Unavailable, "the answer is not valid JSON"),
        (FAULTS["connection cut in the body"], Unavailable, "the answer broke off: Not enough data"),
        (_as_bytes(b"hello"), Unavailable, "not an HTTP answer: "),
        (_as_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), Unavailable, "not an HTTP answer: Invalid char"),
        (_redirect, UsageError, "redirects /v1/completions to http://elsewhere/; write the URL of the server itself"),
        (_redirect_with_a_token, UsageError, "redirects /v1/completions to http://***@elsewhere/v1?***; write the URL"),
    ],
)
def test_bad_answers_are_said_in_one_line(fault: Any, kind: type[UnderstudyError], said: str) -> None:
    """With the endpoint's URL, and what it answered; answers that may be better next time are Unavailable."""
    with running(_faulty(fault)) as server, pytest.raises(kind) as error:
        _ask(server.url)
    assert said in str(error.value)
    assert str(error.value).startswith("http://127.0.0.1:")
    assert [] == [part for part in ("\n", CANARY, "message=", "^") if part in str(error.value)]


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("1e12", 86_400.0),
        (None, None),
        ("soon", None),
        ("nan", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", None),
        ("Mon, 01 Jan 2024 00:00:99999999999 +0000", None),
    ],
)
def test_retry_after_is_read(after: str | None, seconds: float | None) -> None:
    """Seconds, within a day; what is not a number is as if it was missing."""
    with running(_faulty(overloaded(after))) as server, pytest.raises(Overloaded) as error:
        _ask(server.url)
    assert seconds == error.value.seconds


def test_retry_after_may_be_a_date() -> None:
    """As HTTP allows it."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    with running(_faulty(overloaded(later))) as server, pytest.raises(Overloaded) as error:
        _ask(server.url)
    assert error.value.seconds is not None
    assert 50 < error.value.seconds <= 60


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    """A refused connection, a name that nobody has, a socket that is not there: in the words of the system."""
    for url, said in [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://nobody.invalid", ""),
        (f"unix://{tmp_path}/none", "No such file or directory"),
    ]:
        with pytest.raises(Unavailable, match=f"{url}: cannot connect: {said}") as error:
            _ask(url)
        assert "ssl" not in str(error.value)


def test_a_limit_of_this_process_is_no_fault_of_the_server() -> None:
    """Asked again, and elsewhere, it would fail the same way."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def ask() -> None:
        endpoint = Endpoint(EndpointConfig(url="http://127.0.0.1:9"), ServerConfig())
        await endpoint.open()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))  # no more than the standard streams
        try:
            await endpoint.get("/v1/models")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            await endpoint.close()

    with pytest.raises(
        UnderstudyError, match=r"Too many open files: .*\(ulimit -n\) or lower the concurrency"
    ) as error:
        asyncio.run(ask())
    assert not isinstance(error.value, Unavailable)


def test_what_needs_no_computation_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts connections and answers nothing is found out long before `timeout_seconds`."""
    monkeypatch.setattr("pipeline.servers.endpoint._GET_SECONDS", 0.1)
    with (
        running(StandIn(silent=True)) as server,
        pytest.raises(Unavailable, match=r"no complete answer within 0\.1 s"),
    ):
        _ask(server.url, "/v1/models", timeout_seconds=600.0)


def test_no_answer_in_time_is_unavailable() -> None:
    """The time counts to the end of the answer."""
    with (
        running(_faulty(FAULTS["one byte at a time"])) as server,
        pytest.raises(Unavailable, match="no complete answer"),
    ):
        _ask(server.url, timeout_seconds=0.3)


def test_a_refused_request_is_not_asked_again() -> None:
    """A 4xx is the request's fault: exit 2, with the server's words."""
    with running(StandIn()) as server, pytest.raises(RequestRefused, match="maximum context length is 4096") as error:
        _ask(server.url, body=BODY | {"max_tokens": 5000})
    assert EXIT_USAGE == error.value.exit_code
    assert EXIT_FAILURE == Unavailable("x").exit_code


def test_the_token_of_a_gateway_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent as a bearer token; without it the message says what to set."""
    monkeypatch.setenv("GATEWAY_TOKEN", CANARY)
    with running(StandIn(token=CANARY)) as server:
        assert "choices" in _ask(server.url, key_variable="GATEWAY_TOKEN")
        with pytest.raises(UsageError, match=r"HTTP 401: Unauthorized; .* set generate\.server\.key_variable"):
            _ask(server.url)
        monkeypatch.setenv("GATEWAY_TOKEN", CANARY + "-old")
        with pytest.raises(UsageError, match="GATEWAY_TOKEN: its token is not accepted") as error:
            _ask(server.url, key_variable="GATEWAY_TOKEN")
    assert CANARY not in str(error.value)


async def _repeats_the_token(request: web.Request, raw: bytes) -> web.StreamResponse:
    said = f"x{request.headers['Authorization']} is not a key"
    return web.json_response({"error": {"message": said}}, status=400)


async def _page_with_the_token(request: web.Request, raw: bytes) -> web.StreamResponse:
    return web.Response(text=" " * 190 + request.headers["Authorization"], headers={"Location": CANARY})


@pytest.mark.parametrize("fault", [_repeats_the_token, _page_with_the_token])
def test_a_token_that_a_gateway_repeats_is_not_printed(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even its beginning, where the quoted answer is cut."""
    monkeypatch.setenv("GATEWAY_TOKEN", CANARY)
    with running(_faulty(fault)) as server, pytest.raises(UnderstudyError) as error:
        _ask(server.url, key_variable="GATEWAY_TOKEN")
    assert (False, True) == (CANARY[:4] in str(error.value), "[token]" in str(error.value))


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


ANSWER = _whole(b'{"choices": [{"index": 0}]}')


@pytest.fixture(scope="module")
def raw_server() -> Iterator[tuple[str, list[bytes]]]:
    """A URL, and the bytes that are sent to each request there before the connection is closed."""
    reply = [b""]
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(1 << 16)
                    connection.sendall(reply[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", reply
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


def _all_of(url: str, reply: list[bytes], sent: Iterable[bytes]) -> list[Any]:
    """What is made of each of the answers, within one event loop."""

    async def ask() -> list[Any]:
        endpoint, found = Endpoint(EndpointConfig(url=url), ServerConfig(timeout_seconds=5.0)), list[Any]()
        await endpoint.open()
        for one in sent:
            reply[0] = one
            try:
                found.append(await endpoint.post("/v1/completions", BODY))
            except UnderstudyError as error:
                found.append(error)
        await endpoint.close()
        return found

    return asyncio.run(ask())


def test_a_connection_that_ends_at_any_byte_is_a_lost_answer(raw_server: tuple[str, list[bytes]]) -> None:
    """Before the headers, within them, and at each byte of the body; the whole answer is read."""
    *cut, whole = _all_of(*raw_server, (ANSWER[:size] for size in range(len(ANSWER) + 1)))
    assert {AnswerLost} == {type(error) for error in cut}
    assert {"choices": [{"index": 0}]} == whole


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.integers(0, len(ANSWER)), st.integers(0, 40))
def test_any_bytes_are_an_answer_or_an_error(
    raw_server: tuple[str, list[bytes]], raw: bytes, place: int, over: int
) -> None:
    """Bytes anywhere in an answer: JSON, or one of our errors in one line; never another exception."""
    (found,) = _all_of(*raw_server, [ANSWER[:place] + raw + ANSWER[place + over :]])
    assert not isinstance(found, UnderstudyError) or "\n" not in str(found)


def test_an_idle_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be closing it at that moment: uvicorn, and so vLLM, after 5 s without saying so."""
    assert endpoint_module._IDLE_SECONDS < 5
    monkeypatch.setattr(endpoint_module, "_IDLE_SECONDS", 0.1)
    answered: list[int] = []  # by connection

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                answered[-1] += 1
                writer.write(_whole(b"{}"))
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        endpoint = Endpoint(EndpointConfig(url=url), ServerConfig())
        await endpoint.open()
        for pause in (0.0, 0.5, 0.0):
            await endpoint.get("/")
            await asyncio.sleep(pause)
        await endpoint.close()
        server.close()

    asyncio.run(ask())
    assert [2, 1] == answered


@pytest.mark.parametrize(
    ("value", "said"), [("", "is not set"), ("a\nb", "no HTTP header can contain"), ("ключ", "no HTTP header")]
)
def test_an_unusable_token_is_said(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    """By the name of the variable, never by its value."""
    monkeypatch.setenv("GATEWAY_TOKEN", value)
    with pytest.raises(UsageError, match=said) as error:
        _ask("http://127.0.0.1:9", key_variable="GATEWAY_TOKEN")
    assert not value or value not in str(error.value)


def test_unix_sockets(tmp_path: Path) -> None:
    """A server on a socket of this machine."""
    with running(StandIn(), unix=str(tmp_path / "vllm.sock")) as server:
        assert f"unix://{tmp_path}/vllm.sock" == server.url
        assert "choices" in _ask(server.url)


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of an unknown authority is refused with what to set; with the authority's file it is accepted."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    options = f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(shlex.split(f"{command} {options}"), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with running(StandIn(), ssl=context) as server:
        with pytest.raises(UsageError, match=r"its certificate is not valid here .*; set SSL_CERT_FILE"):
            _ask(server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert "choices" in _ask(server.url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("10.0.0.1:8000", "does not begin with http:// or https:// or unix://; write"),
        ("ftp://host", "does not begin with http://"),
        ("http://user:pass@host", "has credentials"),
        ("http://host?api_key=x", "has credentials"),
        ("unix://", "has no absolute path of a socket"),
    ],
)
def test_urls_are_checked(url: str, said: str) -> None:
    """Before anything is asked; a password is not printed."""
    with pytest.raises(ValueError, match=said) as error:
        EndpointConfig(url=url)
    assert "pass" not in str(error.value.errors()[0]["msg"])  # type: ignore[attr-defined]


def test_a_url_may_end_with_v1() -> None:
    """As people copy it from clients of OpenAI's API."""
    assert "http://host:8000" == EndpointConfig(url="http://host:8000/v1/").url


def test_the_model_is_chosen_by_name() -> None:
    """The only one, or the one that is named; else the names are listed."""

    with running(StandIn(model="big")) as server:
        found = _read_model(None, server)
        assert ("big", "/models/big", 4096, "0.32.0") == (found.name, found.root, found.context, found.version)
        assert found == _read_model("big", server)
        with pytest.raises(UsageError, match="it does not serve small, but big"):
            _read_model("small", server)


def _read_model(name: str | None, server: StandIn) -> ServedModel:
    async def run() -> ServedModel:
        async with opened(config_of(server)) as endpoint:
            return await read_model(endpoint, name)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [
        {"context": True},
        {"context": 10**30},
        {"context": -5},
        {"version": "\ud800"},
        {"version": "9" * 100_000},
        {"version": ["0.32"]},
        {"owner": "\udc80 \x1b[31m\n"},
    ],
    ids=lambda said: ascii(said)[:30],
)
def test_what_a_server_says_of_its_model_can_be_stored(said: dict[str, Any], tmp_path: Path) -> None:
    """Its identity is written to the store, where every later run must be able to read it."""
    with running(StandIn(**said)) as server:
        model = _read_model(None, server)
    golden = Golden([[1, 2]], [[-1.0]])
    write_json(tmp_path / "facts.json", new_identity(model, golden, "v1", "float32").facts())
    assert model == Identity.from_facts(json.loads((tmp_path / "facts.json").read_text())).model
    assert (tmp_path / "facts.json").stat().st_size < 10_000


@pytest.mark.parametrize("name", ["", "\ud800", "a\x1b[31m", "a\nb", "A" * 100_000], ids=lambda name: ascii(name[:9]))
def test_a_name_that_no_request_can_state_is_no_model(name: str) -> None:
    """One line, and exit code 2."""
    with running(StandIn(model=name)) as server, pytest.raises(UsageError, match="no list of models"):
        _read_model(None, server)


async def _endless(request: web.Request, raw: bytes) -> web.StreamResponse:
    """As fast as it can, without end."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await answer.write(b" " * (1 << 16))
    return answer


@functools.cache
def _spaces(megabytes: int, wbits: int) -> bytes:
    pack = zlib.compressobj(1, wbits=wbits)  # 31: gzip; made without the whole of it in memory
    spaces = b"".join(pack.compress(b" " * 1_000_000) for _ in range(megabytes))
    return spaces + pack.compress(b'{"choices": []}') + pack.flush()


def _packed(megabytes: int, packing: str, wbits: int = 31) -> Any:
    async def fault(request: web.Request, raw: bytes) -> web.StreamResponse:
        assert "identity" == request.headers["Accept-Encoding"]
        return web.Response(body=_spaces(megabytes, wbits), headers={"Content-Encoding": packing})

    return fault


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_endless, "the answer is larger than"),
        (_packed(30, "gzip"), "the answer is larger than"),
        (_packed(1, "br"), "the answer is packed as 'br', which was not asked for"),
    ],
    ids=["endless", "gzip bomb", "unknown packing"],
)
def test_an_answer_has_a_bound(fault: Any, said: str) -> None:
    """It follows from the request. What is beyond it is neither received nor inflated: it would fill the memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with running(_faulty(fault)) as server, pytest.raises(AnswerLost, match=said):
        _ask(server.url, timeout_seconds=60.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_a_packed_answer_is_inflated_up_to_its_bound() -> None:
    """64 kB of a bomb are 64 MB, and many requests are answered at once."""
    pack = zlib.compressobj(wbits=31)
    body = b"".join(pack.compress(b" " * 1_000_000) for _ in range(30)) + pack.flush()

    class Answer:
        headers, ok, content = {"Content-Encoding": "gzip"}, True, None

        async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
            yield body

    answer: Any = Answer()
    answer.content = answer
    tracemalloc.start()
    try:
        with pytest.raises(TooMuch, match="larger than 1,000,000 bytes"):
            asyncio.run(read(answer, 1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_long_error_is_said_by_its_beginning() -> None:
    """A page of 10 MB with status 500 is an error of the server, not an answer that is too long."""

    async def page(request: web.Request, raw: bytes) -> web.StreamResponse:
        return web.Response(status=500, text="broken " * 1_500_000)

    with running(_faulty(page)) as server, pytest.raises(Unavailable, match="HTTP 500: 'broken broken"):
        _ask(server.url)


@pytest.mark.parametrize(("packing", "wbits"), [("gzip", 31), ("deflate", 15), (" GZip ", 31)])
def test_an_answer_that_a_gateway_packs_is_read(packing: str, wbits: int) -> None:
    """Some do so though the request says `identity`. `deflate` is the format of zlib; names are in any case."""
    with running(_faulty(_packed(1, packing, wbits))) as server:
        assert {"choices": []} == _ask(server.url)


def test_the_bound_has_room_for_every_engine() -> None:
    """Entries of 150 bytes, and log p of a whole vocabulary by llama-server."""
    assert most_bytes(4096, 20) > 4096 * 21 * 150
    assert most_bytes(2 + 150_000, 1) > 150_000 * 200


def test_a_request_on_a_connection_that_was_closed_is_sent_again() -> None:
    """Without an error, over a new connection; one that ends on a new connection, or within an answer, is not sent again."""
    sent: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One answer a connection; the next request over it finds it closed."""
        for number in range(2):
            with contextlib.suppress(asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                sent.append(head.split()[1])
                whole = _whole(b"{}")
                writer.write({b"/cut": whole[:20], b"/none": b""}.get(sent[-1], whole if not number else b""))
                if sent[-1] in (b"/cut", b"/none"):
                    break
        writer.close()

    async def ask() -> list[Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        endpoint, found = Endpoint(EndpointConfig(url=url), ServerConfig(timeout_seconds=5.0)), list[Any]()
        await endpoint.open()
        for path in ("/a", "/b", "/cut", "/none"):
            try:
                found.append(await endpoint.post(path, BODY))
            except AnswerLost as error:
                found.append(type(error))
        await endpoint.close()
        server.close()
        return found

    assert [{}, {}, AnswerLost, AnswerLost] == asyncio.run(ask())
    assert [b"/a", b"/b", b"/b", b"/cut", b"/none"] == sent
