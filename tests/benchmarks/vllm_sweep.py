"""A sweep of vLLM's CPU build with vLLM's own load generator: concurrency by draft length, and one draft length by request rate.

One server for each draft length, all of the constructed pair; the calls are made in random order, so that a slow moment of the
machine does not fall on neighbouring points. The results are kept as vLLM writes them, one JSON line a call.
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

CONCURRENCIES, LENGTHS, TURNS = (1, 2, 4, 8, 16), tuple(range(6)), 3
ACCEPTANCE = 0.75
CAP = 16  # max_num_seqs
RATES, RATE_LENGTH, RATE_REQUESTS = (1.1, 1.6, 2.1), 3, 1_000  # requests/s at one draft length
_INPUT, _OUTPUT, _SPREAD = 24, 40, 0.3  # tokens of a request, each up to so much longer or shorter
_VLLM = "VLLM_PYTHON"
RESULTS = Path(__file__).parents[1] / "fixtures" / "vllm_sweep"


def main() -> None:
    if _VLLM not in os.environ:
        sys.exit(f"vllm_sweep: {_VLLM} is not set: it names the Python of vLLM's environment")
    python, wanted = Path(os.environ[_VLLM]), sys.argv[1:] or ["loads", "rates"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        lengths = LENGTHS if "loads" in wanted else (RATE_LENGTH,)
        urls = start_servers(python, Path(place), lengths, stack)
        if "loads" in wanted:
            measure_loads(python, Path(place), urls)
        if "rates" in wanted:
            measure_rates(python, Path(place), urls[RATE_LENGTH])


def measure_loads(python: Path, place: Path, urls: Mapping[int, str]) -> None:
    """Closed loops: write `turn-1.jsonl` and so on."""
    order = random.Random(0)
    for turn in range(TURNS + 1):  # the first one is not kept
        cells = [(concurrency, length) for concurrency in CONCURRENCIES for length in LENGTHS]
        order.shuffle(cells)
        file = RESULTS / f"turn-{turn}.jsonl" if turn else place / "first.jsonl"
        file.unlink(missing_ok=True)
        calls = [
            {
                **_request(urls[length], length, file, place, seed=turn),
                "max-concurrency": concurrency,
                "num-prompts": max(10, 5 * concurrency) if turn else 2,
            }
            for concurrency, length in cells
        ]
        call(python, calls)
        print(f"turn {turn} is done", flush=True)


def measure_rates(python: Path, place: Path, url: str) -> None:
    """Open loops: write `rates.jsonl`, with the output length of each request."""
    file, detailed = RESULTS / "rates.jsonl", place / "rates.jsonl"
    file.unlink(missing_ok=True)
    for rate in RATES:
        detailed.unlink(missing_ok=True)
        asked = _request(url, RATE_LENGTH, detailed, place, seed=100)
        call(python, [asked | {"request-rate": rate, "num-prompts": RATE_REQUESTS}], ["--save-detailed"])
        result = json.loads(detailed.read_text())
        for name in ("input_lens", "ttfts", "itls", "generated_texts", "errors", "start_times"):
            result.pop(name, None)
        with file.open("a") as lines:
            lines.write(json.dumps(result) + "\n")
        print(f"rate {rate} is done", flush=True)


def start_servers(python: Path, place: Path, lengths: Sequence[int], stack: ExitStack) -> dict[int, str]:
    """URLs by draft length. The draft's acceptance is constructed."""
    from tests.benchmarks.constructed_pair import make_pair
    from tests.benchmarks.refpair import find_pair
    from tests.conformance.servers import Server

    print(make_pair(place, find_pair().tokenizer.resolve(), ACCEPTANCE), flush=True)
    urls = {}
    for length in lengths:
        speculative = {"method": "draft_model", "model": str(place / "draft"), "num_speculative_tokens": length}
        arguments = ["--dtype", "bfloat16", "--max-model-len", "256", "--no-enable-prefix-caching"]
        arguments += ["--max-num-seqs", str(CAP)]
        if length:
            arguments += ["--speculative-config", json.dumps(speculative | {"draft_sample_method": "greedy"})]
        server = Server(python, place / "target", arguments, place / f"server-{length}.log")
        urls[length] = server.start().url
        stack.callback(server.stop)
        print(f"draft length {length}: {urls[length]}", flush=True)
    return urls


def _request(url: str, length: int, file: Path, place: Path, seed: int) -> dict[str, Any]:
    """Arguments that all calls share."""
    return {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "target",
        "tokenizer": str(place / "target"),
        "dataset-name": "random",
        "random-input-len": _INPUT,
        "random-output-len": _OUTPUT,
        "random-range-ratio": _SPREAD,
        "temperature": 0.0,
        "seed": seed,
        "metadata": f"k={length}",
        "result-filename": str(file),
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,95,99",
    }


def call(python: Path, calls: Sequence[Mapping[str, Any]], more: Sequence[str] = ()) -> None:
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
