"""`champion rollback` killed by SIGKILL at random moments, then called again: everything is settled, and one version is rolled
back once."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import yaml

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.handover.difference import difference
from pipeline.handover.settle import settle
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from tests.exports import make_export
from tests.integration.conftest import Place
from tests.integration.mlflow_fixtures import Quiet, make_draft, mlflow_template, promote, store

__all__ = ["mlflow_template", "store"]

ROUNDS = 50


def _config(root: Path) -> Path:
    program = root / "reload"
    program.write_text(f"#!/bin/sh\ncat >> '{root / 'told'}'\necho >> '{root / 'told'}'\n")
    program.chmod(0o755)
    path = root / "config.yaml"
    model = {"source": "reference"}
    raw = {"name": "loop", "pair": {"target": model, "draft": model}, "corpus": {"sources": [{"path": "reference"}]}}
    raw["promote"] = {"export": {"engine": "vllm", "out": str(root / "served")}, "notice": {"program": str(program)}}
    path.write_text(yaml.safe_dump(raw))
    return path


def _promote(config: Config, store: Store, root: Path, name: str) -> str:
    registry = registry_for(config, store)
    draft = make_draft(root / "drafts" / name, name.encode())
    promoted = promote(registry, draft, registry.champion(), tags={"understudy.key.gate": "g"}, run_id=f"run-{name}")
    make_export(root / "served" / f"version-{promoted.version}", promoted.digest)  # exported before
    settle(config, store, Quiet())
    return promoted.version


def test_fifty_rollbacks_killed_at_random_moments(store: Store, tmp_path: Path) -> None:
    """Each round: a new champion, `champion rollback` killed somewhere between its start and its end, and called again unless it
    had printed its result. Then the champion is the one before, alias, link and last notice agree, and each change was announced
    under one number."""
    path, choose, killed = _config(tmp_path), random.Random(20261125), 0
    config = load_config(path)
    place = Place(tmp_path / "place").prepare()
    environment = place.environment(PYTHONPATH=str(Path(__file__).parents[2]))
    command = [
        str(Path(sys.executable).with_name("understudy")),
        "champion",
        "rollback",
        str(path),
        "--store",
        str(store.root),
    ]
    before = _promote(config, store, tmp_path, "first")
    began = time.monotonic()
    _promote(config, store, tmp_path, "second")
    subprocess.run(command, env=environment, check=True, capture_output=True)
    whole = time.monotonic() - began
    for number in range(ROUNDS):
        leaving = _promote(config, store, tmp_path, f"round-{number}")
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        time.sleep(choose.uniform(0.3, 1.0) * whole)
        process.kill()
        killed += process.wait() != 0
        if "was rolled back" not in process.communicate()[0]:
            subprocess.run(command, env=environment, check=True, capture_output=True)
        entry = registry_for(config, store).entry()
        told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
        assert before == entry.champion, number
        assert entry.version(leaving).rolled_back, number
        assert "" == difference(config, store), number
        assert f"version-{before}" == os.readlink(tmp_path / "served" / "champion"), number
        assert (before, entry.last_change and entry.last_change.number) == (
            told[-1]["champion"]["version"],
            told[-1]["change"],
        ), number
        by_number = {one["change"]: one["champion"]["version"] for one in told}
        assert all(by_number[one["change"]] == one["champion"]["version"] for one in told), number
        rolled = [one for one in entry.history if one.action == "rollback" and one.old == leaving]
        assert 1 == sum(not one.is_interrupted for one in rolled), number
    assert killed > ROUNDS // 2
