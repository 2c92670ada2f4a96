"""Part 1: the tests of tests/device on this device, and the quickstart to its examination, interrupted once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.device import pretend
from tests.device.kit.models import Setup

_ROOT = Path(__file__).parents[3]
_MAIN = "from pipeline.cli import main; main()"


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for name in ("test_decoding", "test_training", "test_jobs"):
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
    done = subprocess.run([*command, *few], cwd=_ROOT, env=_environment(setup), capture_output=True, text=True)
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
    reasons = [line[:300] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not counts:
        raise RuntimeError(done.stdout[-1000:] + done.stderr[-1000:])
    return {**counts, "reasons": reasons}


def interrupted_loop(setup: Setup, config: str) -> dict[str, Any]:
    """Figures of the examined drafts, and what each stage took. The training is interrupted and goes on."""
    store = setup.work / config
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
    interrupted = _interrupted(command, environment, store)
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout[-1500:] + done.stderr[-1500:])
    went_on = "goes on from step" in done.stdout + done.stderr
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


def _interrupted(command: list[str], environment: dict[str, str], store: Path) -> bool:
    """Whether the run was stopped after a checkpoint of its training."""
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        if any(store.rglob("checkpoint-*/trainer_state.json")):
            process.send_signal(signal.SIGINT)
            process.wait()
            return True
        time.sleep(0.05)
    return False
