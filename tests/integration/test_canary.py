"""A secret in every place where one can be, and a server that repeats all it is sent: afterwards it is nowhere.

Searched are the store with MLflow's database and artifacts, all output, the page, an export and the home directory.
"""

import base64
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import SMOKE, Ended, Place, loop, place, smoke

__all__ = ["loop", "place", "smoke"]

_REVISION = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def _repeating() -> Iterator[tuple[str, list[str]]]:
    """A server whose errors repeat the headers that it was sent, as some gateways do when they fail; and what it was sent."""
    sent: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = f"the request had Authorization: {self.headers.get('Authorization')}"
            sent.append(said)
            body = json.dumps({"error_code": "INTERNAL_ERROR", "message": said, "error": {"message": said}}).encode()
            self.send_response(400 if self.path.startswith(("/v1", "/hook")) else 500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Canaries:
    """Secrets by the place that they are put into."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def __call__(self, where: str) -> str:
        return self.made.setdefault(where, f"c4nary-{len(self.made)}-{where}")

    def forms(self) -> dict[str, bytes]:
        """What to look for: each secret, and the logins in base64."""
        plain = {where: secret.encode() for where, secret in self.made.items()}
        logins = {
            f"{where} as login": base64.b64encode(f"night-run:{secret}".encode()).rstrip(b"=")
            for where, secret in self.made.items()
        }
        return plain | logins


def _commands(loop: Place, url: str, canary: _Canaries) -> list[Ended]:
    """Commands that use each secret, and commands that are given one where none belongs."""
    netrc = loop.root / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login night-run password {canary('netrc')}\n")
    hub = f"http://night-run:{canary('proxy')}@127.0.0.1:9"
    env = {
        "HF_TOKEN": canary("hub"),
        "AWS_SECRET_ACCESS_KEY": canary("aws"),
        "GATEWAY": canary("gateway"),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # nobody repeats what answers with an error
        "https_proxy": hub,
        "HTTPS_PROXY": hub,
    }
    login = {"MLFLOW_TRACKING_USERNAME": "night-run", "MLFLOW_TRACKING_PASSWORD": canary("password")}
    bearer = {"MLFLOW_TRACKING_TOKEN": canary("bearer")}
    noticed, plain = loop.root / "noticed.yaml", SMOKE.read_text()
    noticed.write_text(f"{plain}promote: {{notice: {{url: '{url}/hook', key_variable: HOOK}}}}\n")
    program = loop.root / "reload"
    program.write_text("#!/bin/sh\nenv | sort | tail -n 60 | tr '\\n' ' '\nexit 7\n")
    program.chmod(0o755)
    called = loop.root / "called.yaml"
    named = plain.replace("generate: {", "generate: {server: {key_variable: GATEWAY}, ")
    called.write_text(f"{named}promote: {{notice: {{program: '{program}'}}}}\n")
    prompts = loop.root / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "number {number}"}}\n' for number in range(50)))
    draft, tokenizer = loop.artifact("distill"), loop.artifact("pair") / "tokenizer"
    served = (
        f"pair.target={{source: server, tokenizer: '{tokenizer}'}}",
        f"pair.draft={{source: '{draft / 'draft'}'}}",
        "generate.engine=server",
        f"generate.server={{endpoints: ['{url}'], key_variable: GATEWAY}}",
        f"corpus.sources=[{{path: '{prompts}'}}]",
    )
    of_hub = f"pair={{target: {{source: org/name, revision: {_REVISION}}}, draft: {{source: org/other, revision: {_REVISION}}}}}"
    wrong = (
        f"tracking.uri=http://u:{canary('uri')}@127.0.0.1:1",
        f"tracking.uri=http://127.0.0.1:1/?sig={canary('query')}",
        f"tracking.uri=http://127.0.0.1:1/#{canary('fragment')}",
        f"generate.server.endpoints=['http://127.0.0.1:1/?X-Amz-Signature={canary('signature')}']",
        f"promote.export={{engine: vllm, out: 's3://k:{canary('bucket')}@b/x'}}",
        f"pair.target.source=https://u:{canary('source')}@hub/org/name",
        f"corpus.sources=[{{path: 'https://u:{canary('prompts')}@h/x.jsonl'}}]",
        f"generate.server.token={canary('unknown-key')}",
    )
    page, exported = loop.root / "page.html", loop.root / "exported"
    done = [
        loop.understudy("run", noticed, "--run", "noticed", **env, HOOK=canary("hook")),
        loop.understudy("champion", "settle", called, **env),
        loop.understudy(
            "run", SMOKE, "--run", "down", **env, **login, MLFLOW_TRACKING_URI=url, NETRC=str(loop.root / "none")
        ),
        loop.understudy("store", "sync", "noticed", **env, **bearer, MLFLOW_TRACKING_URI=url, NETRC=str(netrc)),
        loop.understudy("run", SMOKE, *(part for one in served for part in ("--set", one)), **env),
        loop.understudy("run", SMOKE, "--set", of_hub, "--set", f"corpus.sources=[{{path: '{prompts}'}}]", **env),
        loop.understudy("show", "noticed", "--json", **env),
        loop.understudy("show", "noticed", "--html", page, **env),
        loop.understudy("champion", "history", noticed, **env),
        loop.understudy("champion", "export", "--engine", "transformers", "--out", exported, **env),
        loop.understudy("doctor", **env, **login),
        loop.understudy("run", SMOKE, "--dry-run", **env),
    ]
    done += [loop.understudy("run", SMOKE, "--set", one, **env) for one in wrong]
    assert [2] * len(wrong) == [one.code for one in done[-len(wrong) :]]
    for made in (netrc, program, noticed, called):
        made.unlink()
    return done


def _found(place: Place, ended: list[Ended], canary: _Canaries) -> list[str]:
    """Where a secret is: commands by number, files by path."""
    forms = canary.forms()
    spoken = [
        f"command {number}: {where}: {one.out[-2000:]}{one.err[-2000:]}"
        for number, one in enumerate(ended)
        for where, form in forms.items()
        if form in (one.out + one.err).encode()
    ]
    files = [path for path in place.root.rglob("*") if path.is_file() and not path.is_symlink()]
    written = [f"{path}: {where}" for path in files for where, form in forms.items() if form in path.read_bytes()]
    return spoken + written


def test_a_secret_in_every_place_is_found_nowhere(loop: Place) -> None:
    """Environment, URIs, headers, .netrc, --set, a program's output, and servers that repeat what they are sent."""
    canary = _Canaries()
    with _repeating() as (url, sent):
        ended = _commands(loop, url, canary)
    received = " ".join(sent)

    assert [] == _found(loop, ended, canary)
    assert canary.made["gateway"] in received  # it was sent, and repeated in an error
    assert 1 == ended[1].code  # the program printed its environment


@pytest.mark.long  # trains the small pair: a minute and a half
def test_a_whole_run_writes_no_secret(place: Place) -> None:
    """Every stage, with secrets in the environment, in .netrc, and in the remote and a hook of the repository around it, and a
    tracking server that fails and repeats what it is sent."""
    canary = _Canaries()
    repository, netrc = _repository(place, canary), place.root / "home" / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login night-run password {canary('netrc')}\n")
    proxy = f"http://night-run:{canary('proxy')}@127.0.0.1:9"
    with _repeating() as (url, sent):
        env = {
            "HF_TOKEN": canary("hub"),
            "HUGGING_FACE_HUB_TOKEN": canary("hub, old name"),
            "AWS_SECRET_ACCESS_KEY": canary("aws"),
            "HTTPS_PROXY": proxy,
            "ALL_PROXY": proxy,
        }
        none = str(place.root / "none")  # a login of .netrc replaces the others
        login = {"MLFLOW_TRACKING_USERNAME": "night-run", "MLFLOW_TRACKING_PASSWORD": canary("password"), "NETRC": none}
        bearer = {"MLFLOW_TRACKING_TOKEN": canary("bearer"), "NETRC": none}
        down = ("run", SMOKE, "--run", "down", "--until")
        ended = [
            place.understudy(*down, "corpus", **env, MLFLOW_TRACKING_URI=url),
            place.understudy(*down, "generate", **env, **bearer, MLFLOW_TRACKING_URI=url),
            place.understudy(*down, "evaluate", **env, **login, MLFLOW_TRACKING_URI=url),
            place.understudy("run", SMOKE, "--run", "up", **env, **login),
        ]
    shutil.rmtree(repository)
    netrc.unlink()
    logins = [one for one in sent if "Basic" in one]

    assert [0] * 4 == [one.code for one in ended]
    assert [] == _found(place, ended, canary)
    assert 2 <= len(set(logins))  # of .netrc, and of the environment
    assert any(canary.made["bearer"] in one for one in sent)


def _repository(place: Place, canary: _Canaries) -> Path:
    """A git repository around the place: libraries look for one, and log its remote."""
    where = place.root / ".git"
    remote = f"https://night-run:{canary('remote')}@127.0.0.1:9/drafts.git"
    for line in (("init", "-q"), ("remote", "add", "origin", remote), ("config", "user.password", canary("git"))):
        subprocess.run(["git", "-C", str(place.root), *line], check=True, timeout=60)
    hook = where / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho {canary('hook')}\n")
    hook.chmod(0o755)
    return where
