"""`python -m tests.benchmarks paper_sweep`: what Kong et al. (arXiv 2605.15051) vary, on vLLM's CPU build: verifier and drafter
of other sizes, a mixture of experts, two prompt lengths, three loads, three draft lengths. Every cell is predicted from the
others of its pair and prompt length; the batch by Little's law stands beside the engine's own gauge.

One pair at a time, one server for each draft length, the calls of a turn in random order. Half an hour; nothing else may run.
"""

import json
import os
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

from tests.benchmarks.constructed_pair import EXPERTS, LARGE_DRAFTER, Shape
from tests.benchmarks.figures import write

PAIRS: dict[str, Shape] = {
    "a drafter of a quarter of the layers": LARGE_DRAFTER,
    "a mixture of 16 experts, 2 a token": EXPERTS,
}
PROMPTS = {1: 8, 4: 32, 16: 96}  # by concurrency
LENGTHS, INPUTS, TURNS = (0, 2, 5), (24, 128), 2
_ACCEPTANCE, _OUTPUT, _CAP, _DTYPE = 0.75, 40, 16, "float32"
_EVERY = 0.2  # seconds between two looks at the gauge
_RUNNING = re.compile(r"^vllm:num_requests_running\{[^}]*\} (\S+)$", re.MULTILINE)


def main() -> None:
    if "VLLM_PYTHON" not in os.environ:
        sys.exit("paper_sweep: VLLM_PYTHON is not set: it names the Python of vLLM's environment")
    python, rows = Path(os.environ["VLLM_PYTHON"]), list[dict[str, Any]]()
    for name, shape in PAIRS.items():
        with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
            rows += [{"pair": name, **row} for row in _measured(python, Path(place), shape, stack)]
    write("paper_sweep", "python -m tests.benchmarks paper_sweep", {"rows": rows, "judged": list(_judged(rows))})


def _measured(python: Path, place: Path, shape: Shape, stack: ExitStack) -> Iterator[dict[str, Any]]:
    from tests.benchmarks.vllm_sweep import call_generator, request, start_servers

    urls = start_servers(python, place, LENGTHS, stack, shape, _DTYPE, _ACCEPTANCE, _CAP)
    for turn in range(TURNS + 1):  # turn 0 warms the servers up
        cells = [(concurrency, length, tokens) for concurrency in PROMPTS for length in LENGTHS for tokens in INPUTS]
        random.Random(turn).shuffle(cells)
        file = place / f"turn-{turn}.jsonl"
        calls = [
            {
                **request(urls[length], length, file, place, turn, tokens, _OUTPUT),
                "max-concurrency": concurrency,
                "num-prompts": PROMPTS[concurrency] if turn else 2,
            }
            for concurrency, length, tokens in cells
        ]
        with _Gauges(urls, file) as gauges:
            call_generator(python, calls)
        if turn:
            results = [json.loads(line) for line in file.read_text().splitlines()]
            for (concurrency, length, tokens), result, end in zip(cells, results, gauges.ends, strict=True):
                yield {
                    "turn": turn,
                    "concurrency": concurrency,
                    "gamma": length,
                    "input_tokens": tokens,
                    "running": gauges.mean(length, end - result["duration"], end),
                    "result": {key: value for key, value in result.items() if not isinstance(value, list)},
                }


class _Gauges:
    """Looks at the gauges of all servers until it is left, and notes when each result was written to `file`."""

    def __init__(self, urls: dict[int, str], file: Path) -> None:
        self.urls, self.file = urls, file
        self.seen: list[tuple[float, dict[int, float]]] = []
        self.ends: list[float] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Gauges":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def mean(self, length: int, begin: float, end: float) -> float:
        """Of the middle of a call: at both ends the batch is not full."""
        edge = 0.2 * (end - begin)
        return mean(values[length] for moment, values in self.seen if begin + edge <= moment <= end - edge)

    def _look(self) -> None:
        while True:
            is_last = self._left.is_set()
            found = {}
            for length, url in self.urls.items():
                with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                    found[length] = sum(float(one) for one in _RUNNING.findall(answer.read().decode()))
            self.seen.append((time.time(), found))
            written = len(self.file.read_text().splitlines()) if self.file.exists() else 0
            self.ends += [time.time()] * (written - len(self.ends))
            if is_last:
                return
            time.sleep(_EVERY)


def _judged(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By pair and prompt length: each cell predicted from the others, and what the costs say of the paper's claims."""
    from pipeline.latency.costs.fit import Experts
    from pipeline.latency.costs.fit_measurements import fit_measurements
    from pipeline.latency.costs.measurements import read_measurements
    from tests.benchmarks.sweeps import Sweep, predicted_tpot

    for pair, tokens in dict.fromkeys((row["pair"], row["input_tokens"]) for row in rows):
        own = [row for row in rows if (row["pair"], row["input_tokens"]) == (pair, tokens)]
        turns = []
        with tempfile.TemporaryDirectory() as place:
            for turn in range(1, TURNS + 1):
                of_turn = [row for row in own if row["turn"] == turn]
                (file := Path(place) / f"{turn}.jsonl").write_text(
                    "\n".join(json.dumps(row["result"]) for row in of_turn)
                )
                measured = read_measurements(file).measured
                turns.append(
                    {(row["concurrency"], row["gamma"]): one for row, one in zip(of_turn, measured, strict=True)}
                )
        sweep, shape = Sweep(pair, turns), PAIRS[pair]
        experts = Experts(shape.experts["num_experts_per_tok"], shape.experts["num_experts"]) if shape.experts else None
        errors = {}
        for cell, one in sweep.points.items():
            fitted = fit_measurements(sweep.known(lambda known, cell=cell: known != cell), experts)  # type: ignore[misc]
            true = one.step_seconds / one.tokens_per_step
            errors[f"{cell[0]} {cell[1]}"] = float(predicted_tpot(fitted, [one])[0] / true - 1)
        fitted = fit_measurements(sweep.all, experts)
        points = sweep.points
        tpot = {cell: one.step_seconds / one.tokens_per_step for cell, one in points.items()}
        yield {
            "pair": pair,
            "input_tokens": tokens,
            "errors": errors,
            "coefficients": {name: one.value for name, one in fitted.costs.coefficients.items()},
            "prefill": fitted.prefill,
            "speedup": {
                str(load): max(tpot[load, 0] / tpot[load, length] for length in LENGTHS) for load in sorted(PROMPTS)
            },
            "experts_share": None
            if experts is None
            else {
                f"{load} {length}": float(
                    fitted.costs.coefficients["experts"].value
                    * experts.share(load * (length + 1))
                    / points[load, length].step_seconds
                )
                for load, length in points
            },
            "littles_law": [
                {
                    "concurrency": row["concurrency"],
                    "gamma": row["gamma"],
                    "gauge": row["running"],
                    # completed requests per second x latency: of those that wait, prefill or decode
                    "law": row["result"]["request_throughput"] * row["result"]["mean_e2el_ms"] / 1e3,
                }
                for row in own
            ],
        }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Beside the paper's claims\n"
    yield (
        "Kong et al. vary verifier and drafter, prompts, loads and draft lengths on vLLM. Here vLLM's CPU build in fp32, one "
        f"thread a server, on constructed pairs (`constructed_pair.py`) with an acceptance of {_ACCEPTANCE}; outputs of {_OUTPUT}"
        f" tokens; draft lengths {', '.join(map(str, LENGTHS))} at {', '.join(map(str, PROMPTS))} concurrent requests, {TURNS} "
        "turns. Each cell is predicted from the other eight of its pair and prompt length. Little's law: completed requests per "
        "second times latency, against the engine's gauge of running requests in the middle of each call: a request that waits"
        f" for its prefill is in the first alone. {figure.get('note', '')}\n"
    )
    yield (
        "| pair | prompt tokens | error of a left-out cell: median | largest | best speedup at "
        f"{', '.join(map(str, PROMPTS))} requests | prefill, ms | verify, draft, each, ms | experts' share of a step, 1 "
        "to 16 requests, plain | batch: Little's law / gauge, median |"
    )
    yield "|---" * 9 + "|"
    for one in figure["judged"]:
        errors = [abs(error) for error in one["errors"].values()]
        names = ("verify", "draft", "verify_each", "draft_each")
        share, costs = one["experts_share"], one["coefficients"]
        listed = ", ".join(f"{1e3 * costs.get(name, 0.0):.1f}" for name in names)
        of_experts = "" if share is None else "{:.0%} to {:.0%}".format(share["1 0"], share["16 0"])
        yield (
            f"| {one['pair']} | {one['input_tokens']} | **{median(errors):.1%}** | {max(errors):.1%} | "
            f"{', '.join(f'{found:.2f}' for found in one['speedup'].values())} | {1e3 * one['prefill']:.0f} | "
            f"{listed} | "
            f"{of_experts} | "
            f"{median(row['law'] / row['gauge'] for row in one['littles_law']):.2f} |"
        )
