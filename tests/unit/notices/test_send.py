"""A webhook whose URL is a secret: it is read from the environment, and no message and no record has it."""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tenacity import wait_none

from pipeline.config.promote import NoticeConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.handover.settled import Settled
from pipeline.notices import send as send_module
from pipeline.notices.champion import Notice
from pipeline.notices.send import check_receiver, receiver_name, send
from pipeline.store.processes import running_process

SECRET = NoticeConfig(url_variable="HOOK_URL")
NOTICE = Notice(name="n", change=1, time="t", action="promote", champion=None, replaced=None, by="b", why="w")


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again without a pause."""
    monkeypatch.setattr(send_module, "wait_exponential", lambda **_: wait_none())


@contextlib.contextmanager
def _hook(status: int, body: bytes, paths: list[str], open_ended: bool = False) -> Iterator[str]:
    """A receiver that answers so; `open_ended`: it says no length, and leaves the connection open for a while."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)
            if open_ended:
                ended.wait(10)

        def log_message(self, format: str, *args: object) -> None:
            pass

    ended, server = threading.Event(), http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"", ""),
        (200, b"ok", ""),
        (200, b'{"ok": true}', ""),
        (
            200,
            b'{"ok": false, "error": "channel_not_found"}',
            'HTTP 200 ({"ok": false, "error": "channel_not_found"}); check',
        ),
        (400, b"no_text\n\x1b[31m", "HTTP 400 (no_text \\x1b[31m); check promote.notice"),
        (404, b"<html>", "HTTP 404; check"),
        (503, b"no_service", "HTTP 503 (no_service)"),
    ],
)
def test_what_a_receiver_says_is_quoted(status: int, body: bytes, said: str) -> None:
    """It is often the only place that says what is wrong; and a chat service says with status 200 that it took nothing."""
    with _hook(status, body, []) as url:
        if not said:
            send(NoticeConfig(url=url), NOTICE)
            return
        with pytest.raises(UnderstudyError) as caught:
            send(NoticeConfig(url=url), NOTICE)
    assert said in str(caught.value)


def test_an_answer_that_does_not_end_is_taken_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_module, "_SAID_SECONDS", 0.05)
    with _hook(200, b"", [], open_ended=True) as url:
        send(NoticeConfig(url=url), NOTICE)


def test_the_url_of_the_environment_is_called_and_named_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat services put the token into the path."""
    paths: list[str] = []
    with _hook(403, b"c4nary", paths) as url:
        monkeypatch.setenv("HOOK_URL", f"{url.removesuffix('hook')}T1/c4nary\n")
        with pytest.raises(UnderstudyError) as caught:
            send(SECRET, NOTICE)

    assert ["/T1/c4nary"] == paths
    assert "notice: $HOOK_URL answered with HTTP 403; check promote.notice" == str(caught.value)
    assert "$HOOK_URL" == receiver_name(SECRET)


@pytest.mark.usefixtures("_at_once")
def test_a_secret_url_that_does_not_answer_is_named_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own error names the host, and may name the path."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HOOK_URL", f"http://127.0.0.1:{port}/c4nary")
    with pytest.raises(UnderstudyError) as caught:
        send(SECRET, NOTICE)
    assert "notice: $HOOK_URL does not answer (ClientConnectorError)" == str(caught.value)


@pytest.mark.parametrize(
    "value", ["", "ftp://c4nary", "c4nary", "http://c4nary..internal", "http://h:c4nary/", "http://h/c4nary x"]
)
def test_a_variable_without_a_url_is_found_before_a_promotion(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """And its value, which may be a secret, is not shown."""
    monkeypatch.setenv("HOOK_URL", value)
    with pytest.raises(UsageError, match=r"HOOK_URL holds no URL") as caught:
        check_receiver(SECRET)
    assert "c4nary" not in str(caught.value)


def test_a_program_that_does_not_end_ends_with_its_children(tmp_path: Path) -> None:
    """A hook that waits for a command of its own would leave that behind, at work on the engines."""
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    program.chmod(0o755)
    with pytest.raises(
        UnderstudyError, match=r"hook did not end within 0\.3 s; raise promote\.notice\.timeout_seconds"
    ):
        send(NoticeConfig(program=str(program), timeout_seconds=0.3), NOTICE)
    child = int((tmp_path / "child").read_text())
    for _ in range(500):  # until the system has ended it
        if not running_process(child):
            break
        time.sleep(0.01)
    assert not running_process(child)


def test_what_sends_a_refused_notice_again() -> None:
    """`settle` sends none that was accepted once."""
    assert "call `champion settle`" == NOTICE.again
    assert "call `champion verify`" == replace(NOTICE, repeated="t").again


def test_a_notice_that_is_repeated_is_another_message() -> None:
    """A receiver drops what it has seen by its key."""
    assert ("n/1", "n/1/t2") == (NOTICE.key, replace(NOTICE, repeated="t2").key)


def test_a_program_is_one_receiver_whatever_the_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod has a new host name each time, and the change was told already."""
    names = set()
    for host in ("pod-7f", "pod-8a"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        names.add(receiver_name(NoticeConfig(program="/bin/true")))
    assert {"/bin/true"} == names


def test_what_earlier_versions_told_a_program_is_known() -> None:
    """They named it with the host, so that each pod told it again and the file grew: those names become one."""
    found = Settled(change=5, noticed={"/hook on pod-1": 3, "/hook on pod-2": 5, "/hooks on pod-1": 2, "$URL": 4})
    assert [5, 2, 4, 0] == [found.told(name) for name in ("/hook", "/hooks", "$URL", "http://other")]
    assert {"/hook": 6, "/hooks on pod-1": 2, "$URL": 4} == found.with_told("/hook", 6)


def test_messages_name_the_section_that_a_message_is_of(tmp_path: Path) -> None:
    """A drift's receiver is in watch.notice, and not in promote.notice."""

    class OfTheWatch(Notice):
        @property
        def section(self) -> str:
            return "watch.notice"

    drift = OfTheWatch(**vars(NOTICE))
    with pytest.raises(UsageError, match=r"^watch\.notice\.program: .*/gone: no such program"):
        send(NoticeConfig(program=str(tmp_path / "gone")), drift)


@pytest.mark.usefixtures("_at_once")
def test_a_webhook_that_does_not_answer_in_time_is_named() -> None:
    """It accepts the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(UnderstudyError, match=rf"notice: {url} did not answer within 0\.05 s"):
            send(NoticeConfig(url=url, timeout_seconds=0.05), NOTICE)
