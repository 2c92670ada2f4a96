"""The loop with a real MLflow server: figures, registry and draft go over HTTP, and it may die at any time."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import beginning_of, start_until, without_registry
from tests.e2e.mlflow_server import Server
from tests.integration.basic_auth import LOGIN, SECRETS, guarded
from tests.integration.conftest import SMOKE, Place, Smoke


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def promoted(server: Server, smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store that trained, judged and promoted with the server; pair and completions were there already."""
    place = without_registry(smoke.place, tmp_path_factory.mktemp("promoted") / "place")
    for stage in ("distill", "quantize", "evaluate", "gate"):
        for path in (place.store / "artifacts").glob(f"{stage}-*"):
            shutil.rmtree(path)
    ended = place.process("run", SMOKE, "--set", f"tracking.uri={server.uri}", "--run", "served")
    assert 0 == ended.code, ended.err
    assert f"MLflow: {server.uri}/#/experiments/" in ended.out
    return place


def test_loop_is_tracked_and_promoted_on_the_server(server: Server, promoted: Place) -> None:
    """The run has the decision's figures and files, the draft is champion there, and the store has no database of its own."""
    run = server.run("served")
    figures = json.loads((promoted.artifact("gate", "served") / "manifest.json").read_text())["figures"]
    assert ("promoted served", "FINISHED", "promoted") == (
        run["name"].lstrip("✓⚠ "),
        run["status"],
        run["tags"]["verdict"],
    )
    assert figures == pytest.approx({name: run["metrics"][name] for name in figures})
    assert {"card.md", "config.yaml", "decision.json", "manifests", "review.html"} <= set(run["artifacts"])
    assert "1" == server.champion()
    assert not (promoted.store / "mlflow").exists()


def test_champion_comes_over_http(server: Server, promoted: Place, smoke: Smoke, tmp_path: Path) -> None:
    """On another machine the same loop downloads the champion's files, and finds that it is the candidate."""
    other = without_registry(smoke.place, tmp_path / "other")
    ended = other.process("run", SMOKE, "--set", f"tracking.uri={server.uri}", "--run", "elsewhere")
    manifest = json.loads((other.artifact("distill", "elsewhere") / "manifest.json").read_text())
    (downloaded,) = (other.store / "champions").iterdir()
    made = other.artifact("distill", "elsewhere") / "draft" / "model.safetensors"
    assert (0, "already_champion") == (ended.code, other.record("elsewhere")["decision"]["verdict"]), ended.err
    assert manifest["provides"]["draft"] == downloaded.name
    assert made.read_bytes() == (downloaded / "model.safetensors").read_bytes()
    assert "1" == server.champion()


def test_server_that_dies_within_a_run(server: Server, promoted: Place) -> None:
    """Killed while the draft learns: figures are on disk, the gate fails closed; back again, `sync` uploads them once and
    the run finishes."""
    change = ("--set", f"tracking.uri={server.uri}", "--set", "distill.learning_rate=0.0041", "--run", "orphaned")
    process, _ = start_until(promoted, beginning_of("distill"), *change)
    server.kill()
    _, err = process.communicate()
    record = promoted.record("orphaned")
    still = promoted.process("store", "sync", "orphaned")
    server.start()
    before = server.run("orphaned")
    synced = [promoted.process("store", "sync", "orphaned").code for _ in range(2)]
    after = server.run("orphaned")
    finished = promoted.process("run", SMOKE, *change)
    assert (1, 1) == (process.returncode, err.count("understudy: ")), err
    assert "Traceback" not in err
    assert 1 == err.count(f"warning: tracking at {server.uri} does not answer")
    assert "failed" == record["state"]
    assert promoted.artifact("evaluate/candidate", "orphaned").is_dir()
    assert (1, "orphaned was not uploaded; run `understudy store sync` again when the server answers") == (
        still.code,
        still.complaint,
    )
    assert [0, 0] == synced
    assert "examinations" not in before["artifacts"]
    assert ("FAILED", "failed") == (after["status"], after["tags"]["verdict"])
    assert "examinations" in after["artifacts"]
    assert "training/loss" in after["metrics"]
    assert finished.code in (0, 3), finished.err


def test_a_server_behind_a_password(server: Server, smoke: Smoke, tmp_path: Path) -> None:
    """Without credentials the gate cannot decide; with them the loop promotes, and no file holds the password."""
    place = without_registry(smoke.place, tmp_path / "guarded")
    with guarded(behind=server.port) as guard:
        own = ("--set", "promote.deployment=guarded", "--set", f"tracking.uri={guard.uri}")
        without = place.process("run", SMOKE, *own)
        ended = place.process("run", SMOKE, *own, "--run", "guarded", **LOGIN)
        shown = place.process("show", "guarded", **LOGIN)
        synced = place.process("store", "sync", "guarded", **LOGIN)
    said = "".join(one.out + one.err for one in (without, ended, shown, synced))
    files = [path for path in place.root.rglob("*") if path.is_file()]
    assert (1, True) == (without.code, "refuses the credentials (HTTP 401)" in without.complaint), without.err
    assert [0, 0, 0] == [one.code for one in (ended, shown, synced)], ended.err + synced.err
    assert "promoted" == place.record("guarded")["jobs"]["promote"]["notes"]["result"]
    assert [] == [secret for secret in SECRETS if secret in said]
    assert [] == [path for path in files if any(secret.encode() in path.read_bytes() for secret in SECRETS)]
