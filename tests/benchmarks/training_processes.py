"""Tokens a second of a training in one process and in two, one thread each: a draft of 22 M parameters, 16 rows of 256 tokens.

Both take turns. Seconds are those between a training of few steps and one of more, so that what is paid once is left out.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.figures import ROOT, write

ROWS, TOKENS, VOCABULARY = 16, 256, 4096
HIDDEN, LAYERS = 384, 14
_STEPS, _TURNS = (2, 8), 3


def main() -> None:
    """By number of processes, the median tokens a second over turns; and the median ratio within a turn."""
    found = [{count: _turn(count) for count in (1, 2)} for _ in range(_TURNS)]
    figure = {
        "parameters": found[0][1]["parameters"],
        "tokens_per_second": {
            str(count): median(turn[count]["tokens_per_second"] for turn in found) for count in (1, 2)
        },
        "ratio": median(turn[2]["tokens_per_second"] / turn[1]["tokens_per_second"] for turn in found),
        "turns": _TURNS,
    }
    write("training_processes", "python -m tests.benchmarks training_processes", figure)


def _turn(count: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.benchmarks.training_processes"]
    with tempfile.TemporaryDirectory() as place:
        ranks = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)} if count > 1 else {}
            ranks.append(
                subprocess.Popen([*command, place], env=environment | own, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            )
        said = [rank.communicate()[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    return dict(json.loads(said[0].splitlines()[-1]))


def train(place: Path) -> dict[str, float]:
    """What one process does: two trainings, with the others if there are any."""
    import numpy as np
    import torch

    from pipeline.config.distill import DistillConfig
    from pipeline.distillation import processes
    from pipeline.distillation.trainer import distill
    from pipeline.distillation.weighted_completions import WeightedCompletions
    from pipeline.examination.examiner import AcceptanceSummary
    from tests.fakes import quiet, stored_completion, tiny_llama, tiny_tokenizer

    if "RANK" in os.environ:
        processes.join("cpu")
    generator = np.random.default_rng(0)
    half = TOKENS // 2
    rows = [
        stored_completion(
            generator.integers(0, VOCABULARY, half),
            generator.integers(0, VOCABULARY, half),
            name=f"p{n}",
            vocabulary=VOCABULARY,
            seed=n,
        )
        for n in range(4 * ROWS)
    ]
    took = []
    for steps in _STEPS:
        model = tiny_llama(0, vocabulary=VOCABULARY, hidden=HIDDEN, layers=LAYERS, dtype=torch.float32, spread=0.02)
        settings = DistillConfig(
            learning_rate=2e-3, max_steps=steps, batch=ROWS, save_every=steps, evaluate_every=steps
        )
        began = time.perf_counter()
        distill(
            model,
            tiny_tokenizer(),
            WeightedCompletions(rows, VOCABULARY),
            settings,
            seed=0,
            work=place / str(steps),
            examine=lambda model: AcceptanceSummary(0.5, 1.0, {}),
            progress=quiet(),
        )
        took.append(time.perf_counter() - began)
    processes.leave()
    step = (took[1] - took[0]) / (_STEPS[1] - _STEPS[0])
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens_per_second": ROWS * TOKENS / step,
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    speed = figure["tokens_per_second"]
    yield "## Two processes train one draft\n"
    yield (
        f"A draft of {figure['parameters'] / 1e6:.0f} M parameters, batches of {ROWS} rows of {TOKENS} tokens, one thread for "
        f"each process, {figure['turns']} turns. Gradients are exchanged by gloo.\n"
    )
    yield "| processes | tokens/s |"
    yield "|---|---|"
    for count, tokens in speed.items():
        yield f"| {count} | {tokens:,.0f} |"
    yield f"\nTwo are {figure['ratio']:.2f} times as fast as one."


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]))))
