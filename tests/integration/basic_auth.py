"""A real HTTP server that asks for a user and a password, alone or in front of an MLflow server."""

import base64
import http.client
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

USER, PASSWORD, TOKEN = "night-run", "c4nary-pa55", "c4nary-t0ken"
LOGIN = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
BEARER = {"MLFLOW_TRACKING_TOKEN": TOKEN}
SECRETS = (PASSWORD, TOKEN, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
_ALLOWED = (f"Basic {SECRETS[2]}", f"Bearer {TOKEN}")


class Guard:
    """Counts answers by HTTP status. What is allowed goes to the server at port `behind`; without one, nothing exists."""

    def __init__(self, port: int, statuses: list[int]) -> None:
        self.uri, self.statuses = f"http://127.0.0.1:{port}", statuses


@contextmanager
def guarded(behind: int | None = None) -> Iterator[Guard]:
    statuses: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, headers, body = self._reply(self.rfile.read(length))
            statuses.append(status)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _reply(self, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
            if self.headers.get("Authorization") not in _ALLOWED:
                return 401, {"WWW-Authenticate": "Basic"}, b"who are you?"
            if behind is not None:
                return self._forward(behind, sent)
            if self.path == "/health":
                return 200, {}, b"OK"
            missing = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "nothing is here"}
            return 404, {"Content-Type": "application/json"}, json.dumps(missing).encode()

        def _forward(self, port: int, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            passed = {name: value for name, value in self.headers.items() if name not in ("Authorization", "Host")}
            connection.request(self.command, self.path, sent, passed)
            reply = connection.getresponse()
            body = reply.read()
            connection.close()
            return reply.status, {"Content-Type": reply.headers.get("Content-Type", "text/plain")}, body

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Guard(server.server_address[1], statuses)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
