"""Runs of Understudy that benchmarks start, and what they have built. Finished runs in a store stay."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.figures import ROOT, UNDERSTUDY

_NOBODY = "http://127.0.0.1:1"  # no registry: runs that end before the gate need none


def understudy(*words: object, codes: Sequence[int] = (0,), **environment: str) -> str:
    """What the command prints. SystemExit if it ends with another code than one of `codes`."""
    done = subprocess.run(
        [UNDERSTUDY, *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    if done.returncode not in codes:
        raise SystemExit(f"understudy {words[0]} ended with {done.returncode}")
    return done.stdout


def run_until(store: Path, config: dict[str, Any], until: str, *words: object) -> None:
    """A run of this config, which ends before the gate."""
    store.mkdir(parents=True, exist_ok=True)
    (file := store / f"{config['name']}.yaml").write_text(yaml.safe_dump(config))
    understudy("run", file, "--store", store, "--until", until, *words, MLFLOW_TRACKING_URI=_NOBODY)


def run_once(store: Path, config: dict[str, Any], until: str, run: str) -> dict[str, Path]:
    """Directories of what this run has built, by job; it is used again where it has ended."""
    if not (record := store / "runs" / run / "run.json").exists():
        run_until(store, config, until, "--run", run)
    jobs = json.loads(record.read_text())["jobs"]
    return {job: (store / "artifacts" / f"{entry['stage']}-{entry['key']}").resolve() for job, entry in jobs.items()}


def reference_pair(config: Path, store: Path) -> Path:
    """The pair artifact of a config with a reference pair."""
    if not (found := sorted(store.glob("artifacts/pair-*/target_before"))):
        understudy("run", config, "--store", store, "--until", "pair", MLFLOW_TRACKING_URI=_NOBODY)
        found = sorted(store.glob("artifacts/pair-*/target_before"))
    return found[0].parent


def built(place: Path, name: str, job: str) -> Any:
    """The artifact of a job of the latest run with a config of this name; None where there is none."""
    from pipeline.errors import UnderstudyError
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, list_runs, load_run

    store = Store(place)
    records = [record for run in list_runs(store) if (record := load_run(store, run)) is not None]
    for record in reversed(records):
        if record.name == name:
            try:
                return find_built(store, record, job)
            except UnderstudyError:
                return None
    return None
