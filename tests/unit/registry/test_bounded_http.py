"""A tracking server that is slow, endless, empty or something else, through MLflow's own client."""

import gzip
import http.server
import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as NoAnswer
from requests.exceptions import ProxyError
from urllib3.util.retry import Retry

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.registry import bounded_http
from pipeline.registry.mlflow_client import Location, answering
from pipeline.registry.mlflow_port import opened
from pipeline.store.artifacts import Store

_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"
_TRICKLED = {
    "a head": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "no head": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),  # of many bytes, which an answer may take longer for
    "a body": (_BODY, b" "),
    "a body in chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}
_FOREIGN = {
    "": "an empty answer",
    "{}": "answers with '' where n was asked for",
    "[]": "not in a valid JSON format",
    '{"registered_model": {"name": "other"}}': "answers with 'other' where n was asked for",
    '{"registered_model": 5}': "Failed to parse",
    '{"registered_model": {"name": "n", "aliases": 7}}': "Failed to parse",
}


class _Server(http.server.ThreadingHTTPServer):
    """Healthy, and answers every other request with `first`, and then `rest` again and again."""

    daemon_threads = True
    first, rest, pause, asked = b"", b"", 0.0, 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/health":
            self.wfile.write(_answer(b"OK"))
            return
        self.server.asked += 1
        try:
            self.wfile.write(self.server.first)
            while self.server.rest:
                time.sleep(self.server.pause)
                self.wfile.write(self.server.rest)
        except OSError:
            pass

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *about: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with _Server(("127.0.0.1", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def _read(server: _Server, store: Path) -> None:
    with opened(Location(f"http://127.0.0.1:{server.server_port}", None, "e", Store(store)), "n") as port:
        entry = port.read()
        assert (0, ()) == (entry.change, entry.history)


def _answer(body: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nConnection: close\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("of", _TRICKLED)
def test_an_answer_of_a_byte_now_and_then_ends(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Each byte would begin the timeout of a socket anew. The health check, which is answered at once, is within a second."""
    monkeypatch.setattr(bounded_http, "_seconds", lambda: 1.0)
    (server.first, server.rest), server.pause = _TRICKLED[of], 0.02
    with pytest.raises(RegistryUnavailable, match=r"does not answer any more \((timed out|no complete answer)"):
        _read(server, tmp_path)


def test_an_answer_is_bounded_in_memory(server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is packed: 1 MiB in 1 kB."""
    monkeypatch.setattr(bounded_http, "MOST_BYTES", 1 << 19)
    packed = gzip.compress(bytes(1 << 20))
    for server.first, server.rest in (
        (_answer(packed, "Content-Encoding: gzip\r\n"), b""),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" " * (1 << 18)),
    ):
        with pytest.raises(RegistryUnavailable, match="an answer of more than 0 MiB"):
            _read(server, tmp_path)


@pytest.mark.parametrize("body", _FOREIGN)
def test_a_foreign_answer_is_no_registry_without_champion(server: _Server, tmp_path: Path, body: str) -> None:
    server.first = _answer(body.encode())
    with pytest.raises(RegistryUnavailable, match=_FOREIGN[body]):
        _read(server, tmp_path)


@pytest.mark.parametrize("code", ["[1]", '{"a": 1}'])
def test_an_error_that_mlflow_cannot_read_is_one_line(server: _Server, tmp_path: Path, code: str) -> None:
    """Its client looks the code up in a table, and fails with an error of Python."""
    body = f'{{"error_code": {code}, "message": "no"}}'.encode()
    server.first = b"HTTP/1.1 400 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with pytest.raises(RegistryUnavailable, match=r"failed \(TypeError: unhashable type.*cannot read the answer"):
        _read(server, tmp_path)


def test_an_error_of_ours_is_none_of_mlflow(tmp_path: Path) -> None:
    with (
        pytest.raises(TypeError),
        answering(Location("http://x", None, "e", Store(tmp_path))),
    ):
        len(5)  # type: ignore[arg-type]


def test_redirects_end(server: _Server, tmp_path: Path) -> None:
    """Each of 30 would have the time of an answer."""
    server.first = b"HTTP/1.1 302 There\r\nConnection: close\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(RegistryUnavailable, match="Exceeded 3 redirects"):
        _read(server, tmp_path)
    assert server.asked == 4


def test_an_uploaded_file_is_answered_with_nothing(server: _Server) -> None:
    """As MLflow's own server does. Refused, no draft could be promoted."""
    server.first = _answer(b"")
    url = f"http://127.0.0.1:{server.server_port}/api/2.0/mlflow"
    with requests.Session() as session:
        session.mount("http://", bounded_http.bounded(HTTPAdapter)())
        assert session.put(f"{url}-artifacts/artifacts/1/a.json", data=b"{}").ok
        with pytest.raises(NoAnswer, match="an empty answer"):
            session.put(f"{url}/experiments/get", data=b"{}")


def test_a_proxy_that_makes_no_tunnel_is_an_ordinary_error(server: _Server) -> None:
    """It is asked for one before there is a request, whose bound does not exist yet."""
    with requests.Session() as session:
        session.mount("https://", bounded_http.bounded(HTTPAdapter)())
        session.proxies = {"https": f"http://127.0.0.1:{server.server_port}"}
        with pytest.raises(ProxyError, match="Tunnel connection failed: 501"):
            session.get("https://mlflow.example/health", timeout=5)


def test_an_upload_to_a_server_that_hardly_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part that it takes would begin the timeout of a socket anew."""
    monkeypatch.setattr(bounded_http, "_seconds", lambda: 0.3)
    monkeypatch.setattr(bounded_http, "BYTES_A_SECOND", 1 << 40)  # what the system buffers is no progress
    ended = threading.Event()
    with socket.socket() as listening, requests.Session() as session:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)

        def take() -> None:
            taken, _ = listening.accept()
            with taken:
                while not ended.wait(0.005):
                    taken.recv(1 << 15)

        reader = threading.Thread(target=take)
        reader.start()
        session.mount("http://", bounded_http.bounded(HTTPAdapter)())
        try:
            with pytest.raises(NoAnswer, match="does not take what is sent"):
                session.put(
                    f"http://127.0.0.1:{listening.getsockname()[1]}/", data=io.BytesIO(bytes(1 << 26)), timeout=60
                )
        finally:
            ended.set()
            reader.join()


def test_a_server_is_not_waited_for_as_long_as_it_asks(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.first = b"HTTP/1.1 429 Later\r\nConnection: close\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n"
    retries = Retry(2, status_forcelist=[429], raise_on_status=False)
    with requests.Session() as session:
        session.mount("http://", bounded_http.bounded(HTTPAdapter)(max_retries=retries))
        monkeypatch.setattr(bounded_http, "_seconds", lambda: 7.0)
        paused = list[float]()
        monkeypatch.setattr("urllib3.util.retry.time.sleep", paused.append)
        assert session.get(f"http://127.0.0.1:{server.server_port}/").status_code == 429
    assert paused == [7.0, 7.0]


@pytest.mark.parametrize("key", ["understudy.change", "understudy.history.x"])
def test_a_tag_that_somebody_changed_is_named(server: _Server, tmp_path: Path, key: str) -> None:
    server.first = _answer(
        f'{{"registered_model": {{"name": "n", "tags": [{{"key": "{key}", "value": "x"}}]}}}}'.encode()
    )
    with pytest.raises(UnderstudyError, match=f"the tag {key} in the registry holds 'x'"):
        _read(server, tmp_path)
