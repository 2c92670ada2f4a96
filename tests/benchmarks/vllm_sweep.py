"""A sweep of vLLM's CPU build with vLLM's own load generator: concurrency by draft length, and one draft length by request rate.

One server for each draft length, all of the constructed pair; the calls of a turn are made in random order, so that a slow moment
of the machine does not fall on neighbouring points, and request rates are measured after each turn. The results are kept as
vLLM writes them, one JSON line a call.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.constructed_pair import DENSE, Shape, make_pair

PROMPTS = {1: 10, 2: 16, 4: 32, 8: 56, 16: 112}  # by concurrency: at 7 a place the batch is full 97% of the time
LENGTHS = tuple(range(6))
ACCEPTANCE = 0.75
CAP = 16  # max_num_seqs
# Requests/s at one draft length, after each turn. The heaviest twice, with other arrivals: between two runs of 1,000 requests at
# 75% of the limit p95 differs by a third.
RATES = {1: (1.3,), 2: (1.7,), 3: (2.1, 2.1)}
RATE_LENGTH, RATE_REQUESTS = 3, 1_000
_INPUT, _OUTPUT, _SPREAD = 24, 40, 0.3  # tokens of a request, each up to so much longer or shorter
_VLLM = "VLLM_PYTHON"
RESULTS = Path(__file__).parents[1] / "fixtures" / "vllm_sweep"


def main() -> None:
    if _VLLM not in os.environ:
        sys.exit(f"vllm_sweep: {_VLLM} is not set: it names the Python of vLLM's environment")
    python = Path(os.environ[_VLLM])
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        measure(python, Path(place), start_servers(python, Path(place), LENGTHS, stack))


def measure(python: Path, place: Path, urls: Mapping[int, str]) -> None:
    """Write `turn-1.jsonl` and so on, and `rates.jsonl`. `place` holds the pair."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rates.jsonl").unlink(missing_ok=True)
    _measure_loads(python, place, urls, 0, place / "first.jsonl")  # warms the servers up
    for turn, rates in RATES.items():
        _measure_loads(python, place, urls, turn, RESULTS / f"turn-{turn}.jsonl")
        for run, rate in enumerate(rates):
            _measure_rate(python, place, urls[RATE_LENGTH], rate, run)
        print(f"turn {turn} is done", flush=True)


def _measure_loads(python: Path, place: Path, urls: Mapping[int, str], turn: int, file: Path) -> None:
    """Closed loops at every concurrency and draft length; in turn 0 with two requests each."""
    cells = [(concurrency, length) for concurrency in PROMPTS for length in LENGTHS]
    random.Random(turn).shuffle(cells)
    file.unlink(missing_ok=True)
    calls = [
        {
            **request(urls[length], length, file, place, turn),
            "max-concurrency": concurrency,
            "num-prompts": PROMPTS[concurrency] if turn else 2,
        }
        for concurrency, length in cells
    ]
    call_generator(python, calls)


def _measure_rate(python: Path, place: Path, url: str, rate: float, run: int) -> None:
    """An open loop with Poisson arrivals; keeps the output length of each request, but not its text and chunks."""
    detailed = place / f"rate-{rate:g}.jsonl"
    detailed.unlink(missing_ok=True)
    asked = request(url, RATE_LENGTH, detailed, place, 100 + run)
    call_generator(python, [asked | {"request-rate": rate, "num-prompts": RATE_REQUESTS}], ["--save-detailed"])
    result = json.loads(detailed.read_text())
    for name in ("input_lens", "ttfts", "itls", "generated_texts", "errors", "start_times"):
        result.pop(name, None)
    with (RESULTS / "rates.jsonl").open("a") as lines:
        lines.write(json.dumps(result) + "\n")


def start_servers(
    python: Path,
    place: Path,
    lengths: Sequence[int],
    stack: ExitStack,
    shape: Shape = DENSE,
    dtype: str = "bfloat16",
    acceptance: float = ACCEPTANCE,
    cap: int = CAP,
) -> dict[int, str]:
    """URLs by draft length. The draft's acceptance is constructed."""
    from tests.benchmarks.refpair import find_pair
    from tests.conformance.servers import Server

    print(make_pair(place, find_pair().tokenizer.resolve(), acceptance, dtype, shape), flush=True)
    urls = {}
    for length in lengths:
        speculative = {"method": "draft_model", "model": str(place / "draft"), "num_speculative_tokens": length}
        arguments = ["--dtype", dtype, "--max-model-len", "256", "--no-enable-prefix-caching"]
        arguments += ["--max-num-seqs", str(cap)]
        if length:
            arguments += ["--speculative-config", json.dumps(speculative | {"draft_sample_method": "greedy"})]
        server = stack.enter_context(Server(python, place / "target", arguments, place / f"server-{length}.log"))
        urls[length] = server.url
        print(f"draft length {length}: {urls[length]}", flush=True)
    return urls


def request(
    url: str, length: int, file: Path, place: Path, seed: int, input_tokens: int = _INPUT, output_tokens: int = _OUTPUT
) -> dict[str, Any]:
    """Arguments that all calls share."""
    return {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "target",
        "tokenizer": str(place / "target"),
        "dataset-name": "random",
        "random-input-len": input_tokens,
        "random-output-len": output_tokens,
        "random-range-ratio": _SPREAD,
        "temperature": 0.0,
        "seed": seed,
        "metadata": f"k={length}",
        "result-filename": str(file),
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,95,99",
    }


def call_generator(python: Path, calls: Sequence[Mapping[str, Any]], more: Sequence[str] = ()) -> None:
    """Run `vllm.benchmarks.serve` once for each, in order."""
    always = ["--ignore-eos", "--save-result", "--append-result", "--disable-tqdm", *more]
    flags = [[text for name, value in one.items() for text in (f"--{name}", str(value))] + always for one in calls]
    script = Path(__file__).with_name("vllm_client.py")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [str(python), str(script)],
        input=json.dumps(flags),
        text=True,
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
