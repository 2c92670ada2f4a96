"""A pass of compiled code with one thread, with all, and with the number that is chosen, beside another process that computes."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import ROOT, write
from tests.benchmarks.threads import environment, quiet_and_busy

_TURNS = 5
_PASSES = """
import sys, time
from pipeline.native.threads import limit_spinning
limit_spinning()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from pipeline.native.threads import ThreadChoice
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.forward import CachedModel
if (always := int(sys.argv[1])):
    ThreadChoice.threads = lambda self: always
model = LlamaForCausalLM(LlamaConfig(vocab_size=1024, hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
                                     num_key_value_heads=3, intermediate_size=512, tie_word_embeddings=True)).eval()
ids = torch.arange(256).view(1, -1)
with torch.inference_mode():
    cached = CachedModel(choose_forward(model, 1024), 1, 256)
    cached.logits(ids[:, :128], [0], keep=1)
    for tokens in (1, 6):
        began, passes = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < 3:
            cached.logits(ids[:, 128 : 128 + tokens], [128], keep=tokens)
            passes += 1
        print(1000 * seconds / passes)
"""
_THREADS = {"one thread": 1, "all threads": 2, "chosen": 0}


def main() -> None:
    ways = {name: lambda always=always: _milliseconds(always) for name, always in _THREADS.items()}
    times = quiet_and_busy(ways, _TURNS)
    figure = {
        name: {
            state: [statistics.median(column) for column in zip(*turns, strict=True)] for state, turns in found.items()
        }
        for name, found in times.items()
    }
    write("thread_choice", "python -m tests.benchmarks thread_choice", figure)


def _milliseconds(always: int) -> list[float]:
    """Of a pass of 1 and of 6 tokens."""
    command = [sys.executable, "-c", _PASSES, str(always)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment({}))
    return [float(line) for line in done.stdout.split()]


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## One thread or all, beside another process\n"
    yield (
        f"Milliseconds of a pass of a target of 2 M parameters (fp32), median of {_TURNS} turns, by number of threads; busy: "
        "another process computes with two threads on the same two cores. Aims for the chosen number: quiet as fast as all "
        "threads, busy at most twice the better of the others.\n"
    )
    yield "| threads | quiet, 1 token | quiet, 6 tokens | busy, 1 token | busy, 6 tokens |"
    yield "|---|---|---|---|---|"
    for name, row in figure.items():
        yield f"| {name} | {' | '.join(f'{value:.2f}' for value in (*row['quiet'], *row['busy']))} |"
