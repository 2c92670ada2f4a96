"""What a run takes beside another process that computes: thread settings of Understudy against libgomp's default."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from tests.benchmarks.figures import ROOT, UNDERSTUDY, write

T = TypeVar("T")
_TURNS = 5
_DEFAULT_SPIN = "300000"  # libgomp's own number where no OMP_WAIT_POLICY is set
_OURS: dict[str, str] = {}
_LIBGOMP = {"GOMP_SPINCOUNT": _DEFAULT_SPIN}
_ONE = {"OMP_NUM_THREADS": "1"}
_BUSY = "import torch\na = torch.randn(512, 512)\nwhile True:\n    a = (a @ a).clamp(-1, 1)"
_STEPS = """
import time
from pipeline.native.threads import limit_spinning
limit_spinning()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=128, num_hidden_layers=3, num_attention_heads=2,
                                     num_key_value_heads=2, intermediate_size=256))
ids = torch.randint(512, (8, 64))
def step():
    model(input_ids=ids, labels=ids).loss.backward()
step()
began = time.perf_counter()
for _ in range(60):
    step()
print(time.perf_counter() - began)
"""


def main() -> None:
    figure: dict[str, Any] = {
        "steps": _measure(_training_steps, {"libgomp's default": _LIBGOMP, "Understudy": _OURS, "one thread": _ONE}),
        "smoke": _measure(_smoke_run, {"libgomp's default": _LIBGOMP, "Understudy": _OURS}, busy=("Understudy",)),
    }
    write("threads", "python -m tests.benchmarks threads", figure)


def _measure(work: Any, settings: Mapping[str, Mapping[str, str]], busy: Sequence[str] = ()) -> Any:
    """Median seconds by setting, quiet and beside two computing threads: those named, or all."""
    times = quiet_and_busy({name: partial(work, own) for name, own in settings.items()}, _TURNS, busy)
    return {name: {state: statistics.median(some) for state, some in found.items()} for name, found in times.items()}


def quiet_and_busy(
    ways: Mapping[str, Callable[[], T]], turns: int, busy: Sequence[str] = ()
) -> dict[str, dict[str, list[T]]]:
    """What each way gives in each turn, on a quiet machine and beside two computing threads; ways alternate."""
    times: dict[str, dict[str, list[T]]] = {name: {} for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            times[name].setdefault("quiet", []).append(way())
        with computing():
            for name in busy or ways:
                times[name].setdefault("busy", []).append(ways[name]())
    return times


def environment(setting: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return kept | dict(setting)


def _training_steps(setting: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _STEPS], capture_output=True, text=True, check=True, cwd=ROOT, env=environment(setting)
    )
    return float(done.stdout)


def _smoke_run(setting: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory() as store:
        command = [UNDERSTUDY, "run", "configs/smoke.yaml", "--store", store]
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment(setting))
        return time.perf_counter() - began


@contextmanager
def computing() -> Iterator[None]:
    """Another process with two computing threads."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY], env=environment({"OMP_NUM_THREADS": "2"}))
    time.sleep(3)  # until it has imported torch
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Threads beside another process\n"
    yield (
        f"Median seconds of {_TURNS}, settings alternating; busy: another process computes with two threads on the same two "
        "cores. Aims for a run: quiet at most 5% slower than libgomp's default, busy at most 2.5 times quiet. Steps alone are "
        "worse than a run: two threads wait for each other in every small matrix product, and the other process holds a core "
        "while one of them waits. `OMP_NUM_THREADS=1` avoids that and is slower on a quiet machine. The run was measured when "
        "the smoke loop was half as large again.\n"
    )
    yield "| work | setting | quiet s | busy s | busy / quiet | quiet / libgomp's default |"
    yield "|---|---|---|---|---|---|"
    works = {"steps": "60 training steps, hidden size 128", "smoke": "`understudy run configs/smoke.yaml`"}
    for key, work in works.items():
        base = figure[key]["libgomp's default"]["quiet"]
        for name, row in figure[key].items():
            busy = f"{row['busy']:.1f} | {row['busy'] / row['quiet']:.1f}" if "busy" in row else "- | -"
            yield f"| {work} | {name} | {row['quiet']:.2f} | {busy} | {row['quiet'] / base:.2f} |"
