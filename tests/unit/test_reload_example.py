"""docs/examples/reload_engine.py: a notice restarts the replicas of a service, one after another."""

import importlib.util
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.notices.champion import Champion, Notice
from pipeline.watch.drift_notice import drift_notice
from pipeline.watch.state import new_state

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs" / "examples" / "reload_engine.py"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="runs in a checkout")


class Service:
    """Replicas that are healthy from the second question after a restart on; each appends what is done with it to a log."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked, self.broken = place, dict.fromkeys("ab", 0), ""
        self.seconds = 30.0  # for a replica to load
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                service.asked[name] += 1
                healthy = name != service.broken and service.asked[name] % 2 == 0
                service.note(f"{'healthy' if healthy else 'loading'} {name}")
                self.send_response(200 if healthy else 503)
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def note(self, line: str) -> None:
        with (self.place / "log").open("a") as log:
            log.write(line + "\n")

    @property
    def done(self) -> list[str]:
        log = self.place / "log"
        return log.read_text().splitlines() if log.exists() else []

    def step(self, what: str, name: str) -> list[str]:
        return ["/bin/sh", "-c", 'echo "$1" >> "$0"', str(self.place / "log"), f"{what} {name}"]

    def replica(self, name: str, **changes: Any) -> dict[str, Any]:
        commands = {what: self.step(what, name) for what in ("drain", "restart", "restore")}
        return commands | {"health": f"http://127.0.0.1:{self.server.server_port}/{name}"} | changes

    def notify(
        self,
        change: int,
        replicas: list[dict[str, Any]],
        champion: bool = True,
        repeated: str = "",
    ) -> tuple[int, str]:
        """What the notice of `handover` does: JSON on standard input."""
        champion_7 = Champion(version="7", digest="d", run="r", export="/srv/draft/version-7")
        notice = Notice(
            name="t-draft",
            change=change,
            time="2026-11-25T09:00:00Z",
            action="promote",
            champion=champion_7 if champion else None,
            replaced="6",
            by="ann",
            why="",
            repeated=repeated,
        )
        return self.send(notice.text, replicas)

    def send(self, text: str, replicas: list[dict[str, Any]]) -> tuple[int, str]:
        """The exit code and the last line."""
        (self.place / "replicas.json").write_text(json.dumps({"seconds": self.seconds, "replicas": replicas}))
        ended = subprocess.run(
            [sys.executable, "-S", str(PROGRAM)],  # it needs the standard library only
            input=text,
            env={
                "REPLICAS": str(self.place / "replicas.json"),
                "STATE": str(self.place / "state" / "reloaded.json"),
                "POLL_SECONDS": "0.05",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return ended.returncode, (ended.stdout + ended.stderr).strip().splitlines()[-1]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.server.shutdown()


def _whole(name: str) -> list[str]:
    return [f"drain {name}", f"restart {name}", f"loading {name}", f"healthy {name}", f"restore {name}"]


def test_replicas_are_restarted_one_after_another(service: Service) -> None:
    """The second is taken out only when the first one serves again; the same notice again does nothing. A registry that was made
    anew counts from one: its first change is lower than the last one that was seen."""
    replicas = [service.replica("a"), service.replica("b")]
    assert (0, "t-draft: 2 replicas serve version 7") == service.notify(3, replicas)
    assert [*_whole("a"), *_whole("b")] == service.done
    assert (0, "change 3 of t-draft: reloaded before") == service.notify(3, replicas)
    assert [*_whole("a"), *_whole("b")] == service.done
    assert (0, "t-draft: 1 replicas serve version 7") == service.notify(1, [service.replica("a")])


@pytest.mark.parametrize("state", ["{", "[]", '{"t-draft": [3, ""]}', '{"t-draft": 3}'])
def test_a_damaged_state_is_no_state(service: Service, state: str) -> None:
    """Nor is that of an earlier version of the program: a restart too many is better than none."""
    (service.place / "state").mkdir()
    (service.place / "state" / "reloaded.json").write_text(state)
    assert (0, "t-draft: 1 replicas serve version 7") == service.notify(3, [service.replica("a")])
    assert (0, "change 3 of t-draft: reloaded before") == service.notify(3, [service.replica("a")])


@pytest.mark.parametrize(
    "changes",
    [
        {"health": "localhost:8000"},
        {"health": None},
        {"restart": "systemctl restart vllm"},
        {"drain": [5]},
        {"restart": []},
    ],
    ids=range(5),
)
def test_a_mistake_in_one_replica_is_found_before_any_is_drained(service: Service, changes: dict[str, Any]) -> None:
    code, said = service.notify(3, [service.replica("a"), service.replica("b", **changes)])
    assert (1, [], True) == (code, service.done, said.endswith("nothing was restarted"))


def test_a_service_without_replicas_serves_nothing(service: Service) -> None:
    """Accepted, the notice would not be sent again."""
    code, said = service.notify(3, [])
    assert (1, True) == (code, "there is none" in said)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000], ids=range(3))
def test_what_is_no_notice_is_refused_in_a_line(service: Service, text: str) -> None:
    code, said = service.send(text, [service.replica("a")])
    assert (1, [], True) == (code, service.done, said.startswith("standard input is no notice"))


def test_a_notice_of_a_drift_restarts_nothing(service: Service) -> None:
    """One receiver may be named in promote.notice and in watch.notice."""
    drift = drift_notice(new_state(0.0), "t-draft", 0.0)
    assert (0, "not a change of the champion: nothing to reload") == service.send(drift.text, [service.replica("a")])
    assert [] == service.done


def test_a_health_check_that_cannot_be_read_is_no_health() -> None:
    """A name that is no host's, and an answer that is not HTTP: the replica is drained by then, and goes on loading."""
    spec = importlib.util.spec_from_file_location("reload_engine", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(b"not HTTP\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        assert not program.is_healthy(f"http://127.0.0.1:{server.getsockname()[1]}/health")
    assert not program.is_healthy("http://gpu1..internal/health")


def test_two_notices_at_once_restart_one_after_another(service: Service) -> None:
    with ThreadPoolExecutor(2) as both:
        assert [0, 0] == [code for code, _ in both.map(lambda n: service.notify(n, [service.replica("a")]), (3, 4))]
    assert _whole("a") * 2 == service.done


def test_a_notice_that_is_sent_again_restarts_again(service: Service) -> None:
    """Once for each time at which `champion verify` asked for it."""
    for repeated, whole in (("", 1), ("2026-11-25T10:00:00Z", 2), ("2026-11-25T10:00:00Z", 2), ("", 2)):
        assert 0 == service.notify(3, [service.replica("a")], repeated=repeated)[0]
        assert _whole("a") * whole == service.done


def test_a_replica_that_does_not_come_back_stops_the_others_from_being_touched(service: Service) -> None:
    """Exit code 1: the notice counts as not accepted, and the next one tries again."""
    service.broken, service.seconds = "a", 0.5
    code, line = service.notify(3, [service.replica("a"), service.replica("b")])
    assert code == 1
    assert "/a: not healthy 0.5 s after its restart; the other replicas were left alone" in line
    assert [] == [step for step in service.done if step.endswith(" b") or step == "restore a"]

    service.broken, service.asked["a"], service.seconds = "", 0, 30.0
    assert 0 == service.notify(3, [service.replica("a"), service.replica("b")])[0]


@pytest.mark.parametrize("command", [["/nowhere/systemctl"], ["/bin/sh", "-c", "exit 4"]])
def test_a_step_that_fails_is_named(service: Service, command: list[str]) -> None:
    """Such as a host that cannot be reached."""
    code, line = service.notify(3, [service.replica("a", restart=command), service.replica("b")])
    assert code == 1
    assert line.startswith(" ".join(command))
    assert ["drain a"] == service.done


def test_without_a_champion_nothing_is_restarted(service: Service) -> None:
    """The link is gone: a restart would find no draft."""
    assert 0 == service.notify(3, [service.replica("a")], champion=False)[0]
    assert [] == service.done


@pytest.mark.parametrize("seconds", [float("nan"), 0.0])
def test_a_time_that_never_ends_is_found_before_anything_is_drained(service: Service, seconds: float) -> None:
    service.seconds = seconds
    code, said = service.notify(3, [service.replica("a")])
    expected = f"seconds is {seconds}, and not a positive number; nothing was restarted"
    assert (1, [], True) == (code, service.done, said.endswith(expected))
