"""Two processes that promote at the same moment, on a real MLflow server, many times."""

import contextlib
import http.server
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UnderstudyError
from pipeline.registry.aliases import ModelTag, Write
from pipeline.registry.mlflow_port import MlflowPort
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from tests.e2e.mlflow_server import Server
from tests.integration.conftest import Place
from tests.integration.mlflow_fixtures import config_of, make_draft, promote

ROOT = Path(__file__).parents[2]
NAME = "reference-draft"
ROUNDS, KILLS = 100, 24
LOST = ("the champion changed since the examination", "another process changed the champion")


class Promoter:
    """A long-lived process that promotes what it is told (`promoter.py`). Imports of MLflow are not repeated for each round."""

    def __init__(self, server: Server, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.promoter", server.uri, str(root / "store")],
            cwd=ROOT,
            env=Place(root).prepare().environment(PYTHONPATH=str(ROOT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> str:
        """The next line; empty if the process was killed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def promote(self, draft: Path, expected: str, run: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{draft} {expected} {run}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Watch:
    """Reads the alias `champion` again and again, and remembers whether it was ever without one after it had one."""

    def __init__(self, server: Server) -> None:
        self.server, self.looks, self.absent = server, 0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.05):
            self.looks += 1
            self.absent += self.server.champion() is None


def entry(server: Server) -> dict[str, Any]:
    """Aliases, changes and history of the registered model, as the server has them."""
    model = server.call(f"registered-models/get?name={NAME}")["registered_model"]
    tags = {tag["key"]: tag["value"] for tag in model.get("tags", [])}
    history = [
        tags[key].split()[1:]
        for key in sorted(tags)
        if key.startswith("understudy.history.") and not tags[key].endswith("interrupted, nothing changed")
    ]
    aliases = {alias["alias"]: alias["version"] for alias in model.get("aliases", [])}
    return {"aliases": aliases, "change": int(tags["understudy.change"]), "history": history}


def names(server: Server, filter_string: str = "") -> list[str]:
    """All models, or all prompts."""
    found = server.call("registered-models/search?max_results=100" + filter_string).get("registered_models", [])
    return [model["name"] for model in found]


def prompts(server: Server) -> list[str]:
    return names(server, "&filter=tags.%60mlflow.prompt.is_prompt%60%20%3D%20'true'")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    allowed = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
    found = Server(tmp_path, **allowed)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def two(server: Server, tmp_path: Path) -> Iterator[list[Promoter]]:
    found = [Promoter(server, tmp_path / str(number)) for number in range(2)]
    assert ["ready", "ready"] == [promoter.answer() for promoter in found]
    yield found
    for promoter in found:
        promoter.kill()


def compete(two: list[Promoter], drafts: list[Path], expected: str, runs: list[str]) -> None:
    for promoter, draft, run in zip(two, drafts, runs, strict=True):
        promoter.promote(draft, expected, run)


def drafts_of(tmp_path: Path, number: int) -> list[Path]:
    return [make_draft(tmp_path / f"drafts-{number}-{side}", f"{number} {side}".encode()) for side in "ab"]


def test_two_promoters_a_hundred_times(server: Server, two: list[Promoter], tmp_path: Path) -> None:
    """In each round two processes promote different drafts in place of the same champion. Counted are rounds in which not
    exactly one of them won (a lost or a double promotion), looks at the alias that found no champion, and claims left behind."""
    (first,) = drafts_of(tmp_path, 0)[:1]
    two[0].promote(first, "none", "run-0")
    champion, won = two[0].answer().split()[1], []
    with Watch(server) as watch:
        for number in range(1, ROUNDS + 1):
            runs = [f"run-{number}-{side}" for side in "ab"]
            compete(two, drafts_of(tmp_path, number), champion, runs)
            answers = [promoter.answer() for promoter in two]
            winners = [
                (run, answer.split()[1]) for run, answer in zip(runs, answers, strict=True) if answer[:3] == "won"
            ]
            found = entry(server)
            assert 1 == len(winners), (number, answers)
            assert 1 == sum(any(reason in answer for reason in LOST) for answer in answers), (number, answers)
            assert {"champion": winners[0][1], "previous": champion} == found["aliases"]
            won.append(["promote", champion, "->", winners[0][1], "run", winners[0][0]])
            champion = winners[0][1]
    assert ROUNDS + 1 == found["change"] == len(found["history"])
    assert won == found["history"][1:]
    assert (0, True) == (watch.absent, watch.looks > ROUNDS)
    assert ([NAME], []) == (names(server), prompts(server))


def test_two_promoters_of_which_one_is_killed(server: Server, two: list[Promoter], tmp_path: Path) -> None:
    """One of two processes is killed at a random moment of its promotion. The other wins, or finds that the killed one had won;
    the next round goes on from there, without waiting for the claim of a dead process to become old."""
    choose = random.Random(20260301)
    two[0].promote(drafts_of(tmp_path, 0)[0], "none", "run-0")
    champion = two[0].answer().split()[1]
    with Watch(server) as watch:
        for number in range(1, KILLS + 1):
            victim = choose.randrange(2)
            compete(two, drafts_of(tmp_path, number), champion, [f"run-{number}-{side}" for side in "ab"])
            time.sleep(choose.uniform(0, 2))
            two[victim].kill()
            answer = two[1 - victim].answer()
            now = entry(server)["aliases"]["champion"]
            assert now != champion, (number, answer)
            assert answer == f"won {now}" or any(reason in answer for reason in LOST), (number, answer)
            two[victim] = Promoter(server, tmp_path / f"again-{number}")
            assert "ready" == two[victim].answer()
            champion = now
        two[0].promote(drafts_of(tmp_path, KILLS + 1)[0], champion, "run-last")
        last = two[0].answer().split()[1]
    found = entry(server)
    assert {"champion": last, "previous": champion} == found["aliases"]
    begun, ended = ([line[place] for line in found["history"]] for place in (1, 3))
    assert ended[:-1] == begun[1:]
    assert (0, True) == (watch.absent, watch.looks > KILLS)
    assert ([NAME], []) == (names(server), prompts(server))


def test_an_alias_moved_by_hand_in_mid_promotion_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person moves the alias through the server once a promotion has announced itself; the promotion leaves it there, and the
    next one, which knows of it, goes on."""
    registry = registry_for(config_of(tracking={"uri": server.uri}), Store(tmp_path / "store"))
    drafts = drafts_of(tmp_path, 0) + drafts_of(tmp_path, 1)
    for draft in drafts[:2]:
        promote(registry, draft, registry.champion())
    write, moves = MlflowPort.write, ["1"]

    def moving(port: MlflowPort, one: Write) -> None:
        write(port, one)
        if moves and isinstance(one, ModelTag):
            body = {"name": NAME, "alias": "champion", "version": moves.pop()}
            server.call("registered-models/alias", body)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowPort, "write", moving)
        with pytest.raises(UnderstudyError, match="moved by hand in the meantime"):
            promote(registry, drafts[2], registry.champion())
    moved = server.champion()
    promote(registry, drafts[2], registry.champion())

    assert ("1", "3", []) == (moved, server.champion(), prompts(server))


class _Hook(http.server.BaseHTTPRequestHandler):
    received: list[tuple[str, str]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append((f"{body['entity']}.{body['action']}", body["data"]["name"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def webhook(server: Server, *entities: str) -> Iterator[list[tuple[str, str]]]:
    """What the server reports as created while the block runs."""
    received: list[tuple[str, str]] = []
    handler = type("Hook", (_Hook,), {"received": received})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        events = [{"entity": entity, "action": "CREATED"} for entity in entities]
        url = f"http://127.0.0.1:{listener.server_port}/"
        server.call("webhooks", {"name": "created", "url": url, "events": events, "status": "ACTIVE"})
        yield received
        listener.shutdown()


def test_a_webhook_hears_of_drafts_and_of_no_claim(server: Server, two: list[Promoter], tmp_path: Path) -> None:
    """`registered_model.created` is sent for the registered model alone; the claims are `prompt.created`."""
    with webhook(server, "REGISTERED_MODEL", "PROMPT") as received:
        two[0].promote(drafts_of(tmp_path, 0)[0], "none", "run-0")
        answer = two[0].answer()
        for _ in range(200):
            if len(received) == 2:
                break
            time.sleep(0.1)
    assert answer == "won 1"
    assert [("prompt.created", f"{NAME}--claim-1"), ("registered_model.created", NAME)] == sorted(received)
