"""Files of a store that several processes change: neither loses what the other has written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.running import inputs, served_input
from pipeline.running.inputs import resolve_inputs
from pipeline.servers.identity import Golden, Identity
from pipeline.servers.target import ServedModel
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.runs import JobEntry, RunRecord, load_run

CONFIG = Path(__file__).parents[3] / "configs" / "smoke.yaml"
_WRITER = """
import json
import sys
from pathlib import Path
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
store = Store(Path(sys.argv[1]))
path = store.root / "shared.json"
(store.root / sys.argv[2]).touch()
while not all((store.root / name).exists() for name in "ab"):
    pass  # both begin at once
for number in range(50):
    with store.changing(path):
        write_json(path, {**(json.loads(path.read_text()) if path.exists() else {}), f"{sys.argv[2]}{number}": number})
"""


def test_two_processes_change_one_file(tmp_path: Path) -> None:
    """Every entry of both is there at the end."""
    line = [sys.executable, "-c", _WRITER, str(tmp_path)]
    ends = [process.wait(100) for process in [subprocess.Popen([*line, name]) for name in "ab"]]
    assert ([0, 0], 100) == (ends, len(json.loads((tmp_path / "shared.json").read_text())))


def test_digests_of_another_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another run remembers while this one hashes its files is still remembered afterwards."""
    path = tmp_path / "digests.json"

    def slow(library: Path, megabytes: float) -> str:
        write_json(path, {"other": {"stamp": [1, 2, 3, 4], "sha256": "s"}})
        return "text"

    monkeypatch.setattr(inputs, "text_digest", slow)
    resolve_inputs(load_config(CONFIG, ()), Store(tmp_path))
    assert 2 == len(json.loads(path.read_text()))
    assert "s" == json.loads(path.read_text())["other"]["sha256"]


def _identity(name: str) -> Identity:
    model = ServedModel(name=name, root="", context=128, version="1")
    return Identity(digest=name, model=model, revision="v1", dtype="float32", golden=Golden([[1, 2]], [[-1.0]]))


def test_targets_of_another_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that another run adds meanwhile is kept, and the servers are asked whether it is the same one."""
    path, asked = tmp_path / "served_targets.json", list[int]()

    def ask(config: Config, known: Any) -> Identity:
        asked.append(len(known))
        if len(asked) == 1:
            write_json(path, [_identity("theirs").facts()])
        return _identity("ours")

    monkeypatch.setattr(served_input, "_ask", ask)
    monkeypatch.setattr(inputs, "text_digest", lambda library, megabytes: "text")
    config = load_config(CONFIG, ())
    found = inputs._served(config, Store(tmp_path))
    assert ("ours", [0, 1], ["theirs", "ours"]) == (
        found.digest,
        asked,
        [one["digest"] for one in json.loads(path.read_text())],
    )


def test_two_processes_that_work_on_one_run(tmp_path: Path) -> None:
    """Such as two tasks of a scheduler: the record has the jobs of both."""
    store = Store(tmp_path)
    one, other = (RunRecord(id="r", name="n", created="2026-11-25T00:00:00Z", config={}, outside={}) for _ in range(2))
    for record, job in ((one, "pair"), (other, "corpus"), (one, "distill")):
        record.jobs[job] = JobEntry(stage=job, key="k")
        record.save(store)
    saved = load_run(store, "r")
    assert saved is not None
    assert {"pair", "corpus", "distill"} == set(saved.jobs)
