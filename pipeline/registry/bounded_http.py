"""Bounds on what MLflow's client waits for and holds, of a tracking server: the time of an answer, of an upload, and of a pause
that the server asks for; the size of an answer; the redirects to it.

The timeout of a socket begins anew with each byte, so a server that sends or takes one a second would hold a command, and its
locks, for hours; and an answer that is packed small can be large. MLflow uses `requests`, so the bounds stand in an adapter of
`requests`.
"""

import functools
import io
import math
import os
import socket
import time
from http.client import HTTPResponse
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as NoAnswer
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import ProxyManager
from urllib3.util.retry import Retry

SECONDS = 60.0  # for an answer; more where MLFLOW_HTTP_REQUEST_TIMEOUT asks for more
BYTES_A_SECOND = 1 << 14  # which a long answer, such as a draft's weights, must come with
MOST_BYTES = 1 << 27  # of an answer that is held in memory, unpacked; MLflow asks for parts of 100 MB
REDIRECTS = 3  # each has the time of an answer
_CHUNK = 1 << 16
_API = "/api/2.0/mlflow/"  # what follows it is answered with JSON, if only {}; an upload of an artifact is not


class _Received(io.RawIOBase):
    """What a socket receives, for as long as an answer may take: `seconds`, and one more for each BYTES_A_SECOND of its body."""

    is_body = False  # else of the heads, of which there may be any number: 100 Continue

    def __init__(self, of: io.RawIOBase, connection: socket.socket, seconds: float) -> None:
        self._of, self._connection = of, connection
        self._ends, self._seconds = time.monotonic() + seconds, seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no complete answer within {self._seconds:g} s")
        limit = self._connection.gettimeout()
        self._connection.settimeout(left if limit is None else min(limit, left))
        try:
            count = self._of.readinto(buffer)
        finally:
            self._connection.settimeout(limit)
        if self.is_body:
            self._ends += (count or 0) / BYTES_A_SECOND
        return count

    def close(self) -> None:
        self._of.close()
        super().close()


class _Answer(HTTPResponse):
    """An answer whose head and body are received within the bound."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self._received = _Received(self.fp.detach(), sock, _seconds())
        self.fp = io.BufferedReader(self._received)

    def begin(self) -> None:
        super().begin()
        self._received.is_body = True


def _seconds() -> float:
    try:
        return max(SECONDS, float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", SECONDS)))
    except ValueError:
        return SECONDS


class _Sends:
    """A connection over which a request is sent within the bound of its answer: a server may read as slowly as it writes."""

    _ends = math.inf  # until there is a request: a proxy is first asked for a tunnel, in some hundred bytes

    def putrequest(self, *args: Any, **options: Any) -> None:
        self._ends = time.monotonic() + _seconds()
        super().putrequest(*args, **options)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        if time.monotonic() > self._ends:
            raise TimeoutError(f"it does not take what is sent: less than {BYTES_A_SECOND >> 10} KiB a second")
        super().send(data)  # type: ignore[misc]
        if isinstance(data, bytes | bytearray):  # a part; urllib3 reads files
            self._ends += len(data) / BYTES_A_SECOND


class _Plain(_Sends, HTTPConnection):
    response_class = _Answer


class _Encrypted(_Sends, HTTPSConnection):
    response_class = _Answer


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


_POOLS = {"http": _PlainPool, "https": _EncryptedPool}


@functools.cache
def bound_mlflow() -> None:
    """Let MLflow's client use the bounds, in this process."""
    from mlflow.utils import request_utils

    # Its name until MLflow 3.10. A test holds that the bounds are in force, whatever the version.
    name = "TCPKeepAliveHTTPAdapter" if hasattr(request_utils, "TCPKeepAliveHTTPAdapter") else "HTTPAdapter"
    setattr(request_utils, name, bounded(getattr(request_utils, name)))
    opened = request_utils._cached_get_request_session
    opened.cache_clear()

    def with_few_redirects(*args: Any, **options: Any) -> Any:
        session = opened(*args, **options)
        session.max_redirects = REDIRECTS
        return session

    request_utils._cached_get_request_session = with_few_redirects


def bounded(adapter: type[HTTPAdapter]) -> type[HTTPAdapter]:
    """A class of adapters as `adapter`, with the bounds."""

    class Bounded(adapter):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.max_retries.__class__ = _with_short_pauses(type(self.max_retries))

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = _POOLS

        def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*args, **options)
            if type(manager) is ProxyManager:  # that of SOCKS has connections of its own
                manager.pool_classes_by_scheme = _POOLS
            return manager

        def send(self, request: PreparedRequest, stream: bool = False, **options: Any) -> Response:
            answer: Response = super().send(request, stream=stream, **options)
            return answer if stream else _held(answer)

    return Bounded


def _with_short_pauses(kind: type[Retry]) -> type[Retry]:
    """A server that asks for a pause of a day (Retry-After) is asked again after `_seconds`."""

    class Short(kind):  # type: ignore[valid-type, misc]
        def get_retry_after(self, response: Any) -> float | None:
            asked: float | None = super().get_retry_after(response)
            return None if asked is None else min(asked, _seconds())

    return Short


def _held(answer: Response) -> Response:
    """The answer with its body in memory. `requests` would read it without a bound."""
    body = bytearray()
    for chunk in answer.iter_content(_CHUNK):
        body += chunk
        if len(body) > MOST_BYTES:
            answer.close()
            raise NoAnswer(f"an answer of more than {MOST_BYTES >> 20} MiB", response=answer)
    if answer.status_code == 200 and not body.strip() and _API in (answer.url or ""):
        # MLflow's client takes it for {}: for a registered model without versions, which it is not.
        raise NoAnswer("an empty answer, which no MLflow server gives; what answers there?", response=answer)
    answer._content = bytes(body)  # as `requests` does where it reads the body itself
    return answer
