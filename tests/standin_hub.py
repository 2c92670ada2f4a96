"""A stand-in of the model hub: answers what commit a model has, over HTTP."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def standin_hub(commits: Mapping[str, str]) -> Iterator[str]:
    """Its URL, for HF_ENDPOINT. `commits`: by org/name, or org/name/revision/NAME; others are not there; "gated": no access."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            commit = commits.get(self.path.removeprefix("/api/models/").partition("?")[0])
            status, code = (
                (200, None) if commit else (404, "RevisionNotFound" if "/revision/" in self.path else "RepoNotFound")
            )
            if commit == "gated":
                status, code = 403, "GatedRepo"
            body = json.dumps({"id": "org/name", "sha": commit, "siblings": []} if status == 200 else {}).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
