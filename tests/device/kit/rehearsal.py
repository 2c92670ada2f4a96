"""Part 1: the tests of tests/device on this device, and the quickstart to its examination, interrupted once."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.device import pretend
from tests.device.kit.bounded import run_until, started, wait_until
from tests.device.kit.models import Setup

_ROOT = Path(__file__).parents[3]
_MAIN = "from pipeline.cli import main; main()"


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for name in ("test_decoding", "test_heads", "test_training", "test_jobs"):
        yield name, lambda name=name: _tests(setup, name)
    config = "smoke" if setup.tiny else "quickstart"
    yield f"{config}, interrupted", lambda: interrupted_loop(setup, config)


def _environment(setup: Setup) -> dict[str, str]:
    if setup.device.type == "cuda":
        return {**os.environ, "UNDERSTUDY_TEST_DEVICE": "cuda"}
    return {**os.environ, **pretend.environment()}


def _tests(setup: Setup, name: str) -> dict[str, Any]:
    """How many pass; which do not, and why in a line each."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        f"tests/device/{name}.py",
    ]
    few = ["-k", "Llama or our_forward or device"] if setup.tiny else []
    done = run_until(setup.until, [*command, *few], _ROOT, _environment(setup))
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
    reasons = [line[:300] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not counts:
        raise RuntimeError(done.stdout[-1000:] + done.stderr[-1000:])
    return {**counts, "reasons": reasons}


def interrupted_loop(setup: Setup, config: str) -> dict[str, Any]:
    """Figures of the examined drafts, and what each stage took. The training is interrupted and goes on. From an empty store: one
    that an earlier call has left may have no training to interrupt."""
    shutil.rmtree(store := setup.work / config, ignore_errors=True)
    words = [
        "run",
        f"configs/{config}.yaml",
        "--store",
        str(store),
        "--until",
        "evaluate",
        "--set",
        "quantize.variants=[]",
    ]
    command = [sys.executable, "-c", _MAIN, *words]
    environment = _environment(setup) | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}
    interrupted = _interrupted(setup.until, command, environment, store)
    done = run_until(setup.until, command, _ROOT, environment)
    if done.returncode:
        raise RuntimeError(done.stdout[-1500:] + done.stderr[-1500:])
    went_on = "continues from step" in done.stdout + done.stderr
    if not (interrupted and went_on):
        raise RuntimeError(
            f"the training was {'' if interrupted else 'not '}interrupted, and did {'' if went_on else 'not '}go on"
        )
    manifests = [json.loads(path.read_text()) for path in sorted(store.glob("artifacts/*/manifest.json"))]
    return {
        "interrupted": interrupted,
        "went_on": went_on,
        "devices": sorted({one["environment"]["device"] for one in manifests}),
        "acceptance": {
            one["part"]: one["figures"]["acceptance_rate"] for one in manifests if one["stage"] == "evaluate"
        },
        "stage_seconds": {f"{one['stage']} {one['part']}".strip(): one["seconds"] for one in manifests},
    }


def _interrupted(until: float, command: list[str], environment: dict[str, str], store: Path) -> bool:
    """Whether the run was stopped after a checkpoint of its training."""
    with started(command, _ROOT, environment) as process:
        while process.poll() is None:
            stop = any(store.rglob("checkpoint-*/checkpoint_complete"))
            if stop:
                process.send_signal(signal.SIGTERM)  # SIGINT is ignored by what a shell starts in the background
            if stop or time.monotonic() > until:
                wait_until(until, process)
                return stop
            time.sleep(0.05)
    return False
