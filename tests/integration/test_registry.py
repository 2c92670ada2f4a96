"""Promotion, rollback, races and outages. The registry is in memory where its answers alone count, else MLflow's on SQLite."""

import contextlib
import http.server
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import RegistryUnavailable, UnderstudyError, UsageError
from pipeline.models.files import model_digest
from pipeline.registry import claims, mlflow_client
from pipeline.registry.aliases import Alias, ModelTag, Write
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.mlflow_client import client_for
from pipeline.registry.mlflow_port import MlflowPort
from pipeline.registry.registry import Registry, registered_name, registry_for
from pipeline.store.artifacts import Store
from tests.integration.mlflow_fixtures import config_of, make_draft, mlflow_template, promote, store
from tests.registry_in_memory import PortInMemory, memory_store, on_mlflow, port_of, set_by_hand, store_of

__all__ = ["memory_store", "mlflow_template", "store"]


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Registry:
    return registry_for(config_of(), store_of(request))


def aliases(registry: Registry) -> dict[str, str]:
    with port_of(registry) as port:
        return port.aliases()


def models(registry: Registry) -> list[str]:
    return sorted(model.name for model in client_for(registry.location).search_registered_models())


def roll_back(registry: Registry) -> RegisteredDraft | None:
    """To the version that the registry entry names."""
    entry = registry.entry()
    registry.rollback(entry.champion, entry.rollback_target)
    return registry.champion()


def prompts(registry: Registry) -> list[str]:
    with port_of(registry) as port:
        return sorted(prompt.name for prompt in port.prompts(""))


@pytest.mark.parametrize(
    ("pair", "promotion", "expected"),
    [
        ("reference", {}, "reference-draft"),
        ("reference", {"deployment": "chat"}, "reference-draft--chat"),
        ("reference", {"target_name": "org/Big:7B"}, "org_x2f_Big_x3a_7B-draft"),
        ("/models/my target/", {}, "my_x20_target-draft"),
    ],
)
def test_name_is_taken_from_the_target(pair: str, promotion: dict[str, str], expected: str) -> None:
    """The registered name has no character that MLflow forbids."""
    config = config_of(
        pair={"target": {"source": pair}, "draft": {"source": pair if pair == "reference" else "./small"}},
        promote=promotion,
        corpus={"sources": [{"path": "reference" if pair == "reference" else "p.jsonl"}]},
    )
    assert registered_name(config) == expected


def test_name_of_a_claim_is_refused() -> None:
    """A deployment cannot have the name of a claim."""
    with pytest.raises(UsageError, match="deployment"):
        registered_name(config_of(promote={"deployment": "claim-1"}))


def test_no_champion_at_first(registry: Registry) -> None:
    """An empty registry has no champion."""
    assert registry.champion() is None


@on_mlflow
def test_promote_makes_a_champion(registry: Registry, tmp_path: Path) -> None:
    """The promoted draft is champion, can be fetched, and carries card, figures and tags."""
    draft = make_draft(tmp_path / "draft")
    champion = promote(registry, draft)
    client = client_for(registry.location)
    version = client.get_model_version(registry.name, champion.version)
    assert registry.champion() == champion == registry.champion_at("1")
    files = registry.fetch(champion, tmp_path / "unused")
    assert (files / "README.md").read_text() == "# Card"
    assert model_digest(files) == champion.digest
    assert files.is_relative_to(tmp_path / "store" / "mlflow" / "artifacts")
    assert version.tags["understudy.replaced"] == "none"
    assert version.tags["understudy.run"] == "run-1"
    assert version.tags["target"] == "reference"
    assert version.description == "Better"
    logged = client.get_logged_model(version.tags["understudy.model_id"])
    assert [(m.key, m.value, m.dataset_digest) for m in logged.metrics] == [("acceptance_rate", 0.7, "abc")]
    assert aliases(registry) == {"champion": "1"}
    assert models(registry) == [registry.name]


def test_promoting_the_champion_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    """A second promotion of the same files returns the same version and change number."""
    draft = make_draft(tmp_path / "draft")
    assert promote(registry, draft) == promote(registry, draft)


def test_next_champion_replaces_the_first(registry: Registry, tmp_path: Path) -> None:
    """`previous` is the earlier champion; the changes are numbered."""
    first = promote(registry, make_draft(tmp_path / "a", b"a"))
    second = promote(registry, make_draft(tmp_path / "b", b"b"), first)
    assert aliases(registry) == {"champion": "2", "previous": "1"}
    assert (first.change, second.change) == (1, 2)


def test_champion_moved_by_hand_is_noticed(registry: Registry, tmp_path: Path) -> None:
    """A champion other than the expected one stops the promotion."""
    first = promote(registry, make_draft(tmp_path / "a", b"a"))
    second = promote(registry, make_draft(tmp_path / "b", b"b"), first)
    set_by_hand(registry, "champion", first.version)
    with pytest.raises(UnderstudyError, match=r"was version 2, is 1.*run again"):
        promote(registry, make_draft(tmp_path / "c", b"c"), second)
    assert aliases(registry)["champion"] == "1"


@on_mlflow
def test_champion_without_our_tags_is_named(registry: Registry) -> None:
    """A version without our tags cannot be examined, and the message says what to do."""
    client = client_for(registry.location)
    client.create_registered_model(registry.name)
    client.create_model_version(registry.name, "/nowhere", run_id="r", await_creation_for=0)
    client.set_registered_model_alias(registry.name, "champion", "1")
    with pytest.raises(UnderstudyError, match="not registered by Understudy"):
        registry.champion()


@on_mlflow
def test_one_of_two_threads_wins(registry: Registry, tmp_path: Path) -> None:
    """Of promotions that start from the same champion exactly one succeeds."""
    first = promote(registry, make_draft(tmp_path / "first", b"0"))
    drafts = [make_draft(tmp_path / str(n), str(n).encode()) for n in (1, 2, 3)]
    barrier = threading.Barrier(len(drafts))

    def contend(draft: Path) -> RegisteredDraft | str:
        barrier.wait()
        try:
            return promote(registry, draft, first)
        except UnderstudyError as error:
            return str(error)

    with ThreadPoolExecutor(len(drafts)) as pool:
        outcomes = list(pool.map(contend, drafts))
    winners = [outcome for outcome in outcomes if isinstance(outcome, RegisteredDraft)]
    assert len(winners) == 1, outcomes
    assert registry.champion() == winners[0]
    assert aliases(registry)["previous"] == first.version
    assert models(registry) == [registry.name]


def _contend(root: Path, draft: Path, says: Connection) -> None:
    try:
        promote(registry_for(config_of(), Store(root)), draft)
        says.send("won")
    except UnderstudyError:
        says.send("lost")


@on_mlflow
def test_one_of_two_processes_wins(registry: Registry, tmp_path: Path) -> None:
    """The same across processes, from no champion at all."""
    context = multiprocessing.get_context("fork")
    hears, says = context.Pipe(duplex=False)
    drafts = [make_draft(tmp_path / name, name.encode()) for name in ("a", "b")]
    running = [context.Process(target=_contend, args=(tmp_path / "store", draft, says)) for draft in drafts]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert ["lost", "won"] == sorted(hears.recv() for _ in running)
    assert registry.champion() is not None


@on_mlflow
def test_a_promotion_that_was_killed_is_finished(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death between claim and alias leaves one version, and the next attempt takes the claim over at once."""
    draft = make_draft(tmp_path / "draft")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowPort, "write", _die_at_an_alias)
        patch.setattr(claims, "release", lambda *_: None)  # a killed process releases nothing
        patch.setattr(claims, "running_process", lambda pid: "999999999 1")  # nor does it live
        with pytest.raises(KeyboardInterrupt):
            promote(registry, draft)
    left = prompts(registry)
    champion = promote(registry, draft)
    assert left == [f"{registry.name}--claim-1"]
    assert (champion.version, champion.change) == ("1", 2)  # number 1 is used up
    assert [change.why for change in registry.history()] == ["interrupted, nothing changed", ""]
    assert aliases(registry) == {"champion": "1"}
    assert models(registry) == [registry.name]
    assert prompts(registry) == []


def _die_at_an_alias(port: MlflowPort, write: Write, write_it: Any = MlflowPort.write) -> None:
    if isinstance(write, Alias):
        raise KeyboardInterrupt
    write_it(port, write)


@contextlib.contextmanager
def _hand(monkeypatch: pytest.MonkeyPatch, registry: Registry, alias: str, version: str) -> Iterator[None]:
    """Within the block a person moves `alias` to `version` once, right after a change of the aliases has announced itself."""
    waiting, write_it = [True], PortInMemory.write

    def write(port: PortInMemory, one: Write) -> None:
        write_it(port, one)
        if waiting and isinstance(one, ModelTag) and ".history." in one.key:
            waiting.clear()
            write_it(port, Alias(alias, version))

    with monkeypatch.context() as patch:
        patch.setattr(PortInMemory, "write", write)
        yield
    assert not waiting


def test_an_alias_moved_by_hand_in_mid_promotion_stays(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow has no compare-and-swap: the promotion reads the alias again before it sets it, and leaves what a person chose."""
    drafts = [make_draft(tmp_path / name, name.encode()) for name in "abc"]
    first = promote(registry, drafts[0])
    second = promote(registry, drafts[1], first)
    with _hand(monkeypatch, registry, "champion", "1"), pytest.raises(UnderstudyError) as caught:
        promote(registry, drafts[2], second)
    after, entry = aliases(registry), registry.entry()
    again = promote(registry, drafts[2], registry.champion())

    assert "the alias champion was moved by hand in the meantime (was version 2, is 1)" in str(caught.value)
    assert {"champion": "1", "previous": "1"} == after  # `previous` as the promotion before had set it
    assert (True, "interrupted, nothing changed") == (entry.is_moved_by_hand, entry.history[-1].why)
    assert ("3", {"champion": "3", "previous": "1"}, []) == (again.version, aliases(registry), prompts(registry))


def test_an_alias_moved_by_hand_in_mid_rollback_stays(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the version that was to be left is not marked as rolled back."""
    drafts = [make_draft(tmp_path / name, name.encode()) for name in "abc"]
    for draft in drafts:
        promote(registry, draft, registry.champion())
    with _hand(monkeypatch, registry, "champion", "1"), pytest.raises(UnderstudyError, match="moved by hand"):
        roll_back(registry)

    assert {"champion": "1", "previous": "2"} == aliases(registry)
    assert "" == registry.entry().version("3").rolled_back


def test_an_alias_moved_by_hand_to_the_promoted_draft_is_no_conflict(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person and a promotion that choose the same version agree."""
    drafts = [make_draft(tmp_path / name, name.encode()) for name in "ab"]
    first = promote(registry, drafts[0])
    second = promote(registry, drafts[1], first)
    back = roll_back(registry)
    with _hand(monkeypatch, registry, "champion", "2"):
        again = promote(registry, drafts[1], back)

    assert (second.version, {"champion": "2", "previous": "1"}) == (again.version, aliases(registry))
    assert not registry.entry().is_moved_by_hand


def test_a_challenger_moved_by_hand_in_mid_proposal_stays(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias that a change is about is the one that is read again."""
    drafts = [make_draft(tmp_path / name, name.encode()) for name in "abc"]
    first = promote(registry, drafts[0])
    promote(registry, drafts[1], first, approval_days=7)
    with _hand(monkeypatch, registry, "challenger", "1"), pytest.raises(UnderstudyError, match="alias challenger"):
        promote(registry, drafts[2], first, approval_days=7)

    assert {"champion": "1", "challenger": "1"} == aliases(registry)


def _claim(registry: Registry, change: int = 1) -> claims.Claim:
    claim = _take(registry, change)
    assert isinstance(claim, claims.Claim)
    return claim


def _take(registry: Registry, change: int = 1) -> claims.Claim | claims.Held:
    with port_of(registry) as port:
        return claims.take(port, change, {})


@on_mlflow
def test_a_claim_is_in_no_list_of_models(registry: Registry, tmp_path: Path) -> None:
    """A reviewer who lists the registered models while a promotion is under way sees the drafts alone."""
    promote(registry, make_draft(tmp_path / "draft"))
    claim = _claim(registry, change=2)
    during = models(registry)
    with port_of(registry) as port:
        claims.release(port, claim)

    assert [registry.name] == during == models(registry)
    assert [] == prompts(registry)


def test_live_claim_is_waited_for_and_respected(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another live process holds the claim no alias is changed, and the message names the holder."""
    monkeypatch.setattr("pipeline.registry.changes._WAIT_SECONDS", 0.3)
    _claim(registry)
    with pytest.raises(UnderstudyError, match="another promotion or rollback is under way"):
        promote(registry, make_draft(tmp_path / "draft"))
    assert registry.champion() is None


@pytest.mark.parametrize("process", ["999999999 1", f"{os.getpid()} 1"], ids=["ended", "its id is used again"])
def test_claim_of_a_dead_process_is_taken_over_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    """Of two processes that find the same stale claim only one gets the next one."""
    with monkeypatch.context() as patch:
        patch.setattr(claims, "running_process", lambda pid: process)
        _claim(registry)
    second = _take(registry)
    third = _take(registry)
    assert isinstance(second, claims.Claim)
    assert second.generation == 2
    assert isinstance(third, claims.Held)


def test_a_process_is_known_by_the_time_of_its_start() -> None:
    """Its id alone may be another's after its end; one that has ended is none."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    starts = [claims.running_process(pid).split()[1] for pid in (os.getpid(), other.pid)]
    other.communicate()

    assert starts[0] != starts[1]
    assert "" == claims.running_process(other.pid)


def test_old_claim_of_another_machine_is_taken_over(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a claim of another machine the age decides; the old holder sees that its claim has expired."""
    with monkeypatch.context() as patch:
        patch.setattr(claims, "machine", lambda: "elsewhere")
        patch.setattr(
            claims, "running_process", lambda pid: "999999999 1"
        )  # a process id says nothing about another machine
        first = _claim(registry)
    assert isinstance(_take(registry), claims.Held)
    later = time.time() + claims.STALE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert first.expired
    assert isinstance(_take(registry), claims.Claim)


def test_rollbacks_end_without_a_champion(registry: Registry, tmp_path: Path) -> None:
    """Each rollback restores the replaced version."""
    first = promote(registry, make_draft(tmp_path / "a", b"a"))
    second = promote(registry, make_draft(tmp_path / "b", b"b"), first)
    promote(registry, make_draft(tmp_path / "c", b"c"), second)
    back = roll_back(registry)
    assert back is not None
    assert (back.version, aliases(registry)) == ("2", {"champion": "2", "previous": "1"})
    assert roll_back(registry) is not None
    assert aliases(registry) == {"champion": "1"}
    assert roll_back(registry) is None
    assert registry.champion() is None
    tags = registry.entry().tags
    assert [key for key in sorted(tags) if ".history." in key] == [f"understudy.history.{n:06d}" for n in range(1, 7)]
    assert "rollback 1 -> none" in tags["understudy.history.000006"]


def test_promotion_again_after_a_rollback(registry: Registry, tmp_path: Path) -> None:
    """A draft that was rolled back and passes again keeps its version."""
    first = promote(registry, make_draft(tmp_path / "a", b"a"))
    second = promote(registry, make_draft(tmp_path / "b", b"b"), first)
    roll_back(registry)
    again = promote(registry, tmp_path / "b", first)
    assert again.version == second.version
    assert again.change == 4
    assert aliases(registry) == {"champion": "2", "previous": "1"}


def test_a_draft_that_was_promoted_again_is_not_rolled_back(registry: Registry, tmp_path: Path) -> None:
    """Neither while it is the champion nor after another draft replaced it; a rollback of that one returns to it."""
    draft = make_draft(tmp_path / "a", b"a")
    digest = model_digest(draft)
    promote(registry, draft)
    roll_back(registry)
    off = registry.withdrawn(digest)
    again = promote(registry, draft)
    promote(registry, make_draft(tmp_path / "b", b"b"), again)
    replaced, back = registry.withdrawn(digest), roll_back(registry)

    assert off is not None
    assert replaced is None
    assert back is not None
    assert ("1", {"champion": "1"}) == (back.version, aliases(registry))


def test_a_champion_set_by_hand_is_not_rolled_back(registry: Registry, tmp_path: Path) -> None:
    """The alias says what is in use, whatever was rolled back before."""
    draft = make_draft(tmp_path / "a", b"a")
    promote(registry, draft)
    roll_back(registry)
    set_by_hand(registry, "champion", "1")

    assert registry.withdrawn(model_digest(draft)) is None


def test_altered_files_are_not_fetched(registry: Registry, tmp_path: Path) -> None:
    """The registry's files are compared with the promoted digest."""
    champion = promote(registry, make_draft(tmp_path / "draft"))
    (registry.fetch(champion, tmp_path / "unused") / "model.safetensors").write_bytes(b"other")
    with pytest.raises(UnderstudyError, match="not the files that were registered"):
        registry.fetch(champion, tmp_path / "unused")


@on_mlflow
def test_figures_that_are_not_finite_are_refused(registry: Registry, tmp_path: Path) -> None:
    """A draft with a NaN among its figures is not registered."""
    with pytest.raises(UnderstudyError, match="acceptance_rate: not a finite number"):
        promote(registry, make_draft(tmp_path / "draft"), metrics={"acceptance_rate": float("nan")})
    assert models(registry) == []


def test_unknown_version_is_named(registry: Registry, tmp_path: Path) -> None:
    """A deleted version is an error that names it."""
    promote(registry, make_draft(tmp_path / "draft"))
    with pytest.raises(UnderstudyError, match="no version 7"):
        registry.champion_at("7")


def _unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_refused_connection_fails_within_seconds(store: Store) -> None:
    """A server that does not exist is an error of one line that names it and the cause."""
    port = _unused_port()
    registry = registry_for(config_of(tracking={"uri": f"http://127.0.0.1:{port}"}), store)
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=f"http://127.0.0.1:{port} does not answer") as caught:
        registry.champion()
    assert time.monotonic() - began < 5
    assert str(caught.value).endswith("([Errno 111] Connection refused)")


def test_silent_server_fails_within_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts the connection and does not reply is an error within seconds."""
    assert mlflow_client.PROBE_SECONDS < 8
    monkeypatch.setattr(mlflow_client, "PROBE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = registry_for(config_of(tracking={"uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}), store)
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="does not answer"):
            registry.champion()
        assert time.monotonic() - began < 8


class _Broken(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_something_else_on_the_port_is_unavailable(store: Store) -> None:
    """A server that is not MLflow is an error, not an empty registry."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        registry = registry_for(config_of(tracking={"uri": f"http://127.0.0.1:{server.server_port}"}), store)
        with pytest.raises(RegistryUnavailable, match="failed"):
            registry.champion()
        server.shutdown()


def test_connection_lost_between_two_calls_is_no_answer(store: Store) -> None:
    """A server that stops answering is reported like one that never answered, and as quickly."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        registry = registry_for(config_of(tracking={"uri": f"http://127.0.0.1:{server.server_port}"}), store)
        client_for(registry.location)
        server.shutdown()
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="does not answer any more"):
        registry.champion()
    assert time.monotonic() - began < 8


def test_registry_is_made_without_mlflow(tmp_path: Path) -> None:
    """Creating a registry imports no MLflow, and using one imports no torch."""
    code = (
        "import sys; from pathlib import Path; from pipeline.store.artifacts import Store\n"
        "from pipeline.registry.registry import registry_for; from tests.integration.mlflow_fixtures import config_of\n"
        f"import pipeline.registry.tracking; registry_for(config_of(), Store(Path({str(tmp_path)!r})))\n"
        "assert 'torch' not in sys.modules"
    )
    # pytest plugins of the fixtures module do not import mlflow either
    code += "\nassert 'mlflow' not in sys.modules, 'mlflow'"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
