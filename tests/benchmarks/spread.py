"""What a second Ray worker gives: completions a second against one worker, and what a shard costs beside its work.

Start-up is apart: each worker has made a shard before the clock starts. One computing thread each, and a logical CPU more than
workers, because Ray has a task of its own. Needs `understudy[ray]` and OMP_NUM_THREADS=1: `make bench-scale`.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipeline.config.execution import ExecutionConfig, RayConfig
from pipeline.generation.completion_plan import CompletionRequest, shards_of
from pipeline.generation.completion_store import shard_files
from pipeline.generation.shard_worker import Shard, ShardWork, open_target
from pipeline.progress import Progress
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Part, Work
from pipeline.speculation.settings import Sampling
from tests.benchmarks.figures import write
from tests.fakes import generation_settings, numbered_prompt, tiny_llama
from tests.unit.running.execution.work import Squares, squares, work

SHARDS, SHARD, TOKENS, VOCABULARY = 16, 16, 96, 512
EMPTY = 200  # parts without work
REPEATS = 3


def main() -> None:
    """Seconds for all shards with one worker and with two, in turns; milliseconds of a part without work."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for workers, times in seconds.items():
            times.append(_generate(workers))
    medians = {workers: statistics.median(times) for workers, times in seconds.items()}
    figure = {
        "shards": SHARDS,
        "completions": SHARDS * SHARD,
        "seconds_one": medians[1],
        "seconds_two": medians[2],
        "times": medians[1] / medians[2],
        "milliseconds_a_shard": 1e3 * _empty() / EMPTY,
        "repeats": REPEATS,
    }
    write("spread", "python -m tests.benchmarks spread", figure)


def _context(root: Path, workers: int) -> Any:
    (root / "work/parts-1").mkdir(parents=True)
    return SimpleNamespace(
        out=root / "work/parts-1",
        store=root,
        progress=Progress(False),
        share=None,
        workers=[],
        resources=SimpleNamespace(execution=ExecutionConfig(ray=RayConfig(workers=workers)), device="cpu"),
    )


def _generate(workers: int) -> float:
    generator = np.random.default_rng(0)
    prompts = generator.integers(2, VOCABULARY, (SHARD * (SHARDS + workers), 16)).tolist()
    requests = [CompletionRequest(numbered_prompt(number, ids), Sampling()) for number, ids in enumerate(prompts)]
    settings = generation_settings(sampling=Sampling(), max_new_tokens=TOKENS, batch=SHARD, shard=SHARD)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tiny_llama(1, vocabulary=VOCABULARY, hidden=256, layers=4).float().save_pretrained(root / "target")
        task = ShardWork(
            target=root / "target",
            dtype="float32",
            trust_remote_code=False,
            device_map=None,
            settings=settings,
            longest_prompt=16,
            completions=SHARD,
            vocabulary=VOCABULARY,
            stop_tokens=(),
            batch_tokens=8192,
        )
        parts = [
            Part(shard, shard_files(shard), float(len(part)), partial(Shard, shard, list(part)))
            for shard, part in shards_of(requests, SHARD, 1)
        ]
        with Spread(_context(root, workers), Work(open_target, task)) as spread:
            spread.make(parts[:workers], "start-up", "completions")
            began = time.perf_counter()
            spread.make(parts, "generate", "completions")
            return time.perf_counter() - began


def _empty() -> float:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "log").mkdir()
        with Spread(_context(root / "store", 1), work(Squares(root / "log"))) as spread:
            spread.make(squares(1), "start-up", "parts")
            began = time.perf_counter()
            spread.make(squares(EMPTY + 1), "parts", "parts")
            return time.perf_counter() - began


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Shards on Ray\n"
    yield (
        f"{figure['shards']} shards of {SHARD} completions with {TOKENS} tokens, by one worker and by two, in turns, median of "
        f"{figure['repeats']}; one thread each, start-up apart.\n"
    )
    yield "| figure | | aim |"
    yield "|---|---|---|"
    yield f"| seconds with one worker | {figure['seconds_one']:.1f} | |"
    yield f"| with two | {figure['seconds_two']:.1f} | |"
    yield f"| times as fast | {figure['times']:.2f} | at least 1.5 |"
    yield f"| milliseconds of a part without work | {figure['milliseconds_a_shard']:.1f} | below 50 |"
