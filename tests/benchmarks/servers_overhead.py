"""Throughput of generation by a real vLLM against vLLM's own load generator (`vllm.benchmarks.serve`), in turns: the same server,
concurrency, number of log-probabilities, and lengths of prompts and completions.

The server runs on one core and the clients on the other, as on two machines. Where they share cores, 5 ms of a client's time
after each completion cost 15% of the server's throughput.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import write

CONCURRENCY, PROMPTS, INPUT, OUTPUT, PAIRS = 16, 256, 40, 64, 3
_SERVER, _CLIENTS = {0}, {1}  # cores
LISTED = (20, 128)
_VLLM = "VLLM_PYTHON"


def main() -> None:
    if _VLLM not in os.environ:
        sys.exit(
            f"servers_overhead: {_VLLM} is not set: it names the Python of vLLM's environment; `make bench-served` does"
        )
    write("servers_overhead", "python -m tests.benchmarks servers_overhead", measure(Path(os.environ[_VLLM])))


def measure(python: Path) -> dict[str, Any]:
    """Output tokens per second of both, by number of log-probabilities. `python`: of vLLM's environment."""
    from tests.benchmarks.refpair import find_pair
    from tests.conformance.servers import Server

    pair, found, cores = find_pair(), dict[str, Any](), os.sched_getaffinity(0)
    os.sched_setaffinity(0, _SERVER)  # what is started inherits it
    with tempfile.TemporaryDirectory() as place:
        server = Server(python, pair.target.resolve(), ("--max-logprobs", "128"), Path(place) / "vllm.log")
        server.start()
        os.sched_setaffinity(0, _CLIENTS)
        try:
            for listed in LISTED:
                rates: dict[str, list[float]] = {"ours": [], "vllm": []}
                for number in range(PAIRS + 1):  # the first of each is not measured
                    ours = asyncio.run(_ours(pair, server.url, listed, number))
                    theirs = _theirs(python, pair, server.url, listed, number, Path(place))
                    if number:
                        rates["ours"].append(ours)
                        rates["vllm"].append(theirs)
                ratios = [one / other for one, other in zip(rates["ours"], rates["vllm"], strict=True)]
                found[str(listed)] = {
                    **{name: statistics.median(values) for name, values in rates.items()},
                    "ratio": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
                }
        finally:
            server.stop()
            os.sched_setaffinity(0, cores)
    return found


async def _ours(pair: Any, url: str, listed: int, seed: int) -> float:
    from pipeline.config.server import ServerConfig
    from pipeline.generation.completion_plan import plan_completions
    from pipeline.generation.completion_store import read_completions
    from pipeline.generation.served import generate_by_servers
    from pipeline.generation.served_completion import Served
    from pipeline.servers.connect import connect, identify
    from pipeline.speculation.settings import Sampling
    from tests.fakes import generation_settings, numbered_prompt, quiet

    rng = random.Random(seed)
    prompts = [
        numbered_prompt(number, [rng.randrange(10, pair.vocabulary) for _ in range(INPUT)]) for number in range(PROMPTS)
    ]
    config = ServerConfig.model_validate({"endpoints": [url], "logprobs": listed, "concurrency": CONCURRENCY})
    settings = generation_settings(
        sampling=Sampling(), max_new_tokens=OUTPUT, distribution_tokens=16, batch=1, shard=128, seed=0
    )
    identity = await identify(config, "v1", "float32", [], quiet())
    with tempfile.TemporaryDirectory() as out:
        async with connect(config, identity, pair.vocabulary, quiet()) as (target, abilities):
            served = Served(target, abilities, identity, listed, pair.vocabulary, pair.stop_tokens)
            began = time.perf_counter()
            await generate_by_servers(served, plan_completions(prompts, Sampling()), settings, Path(out), quiet())
            seconds = time.perf_counter() - began
        return sum(item.length for item in read_completions(Path(out))) / seconds


def _theirs(python: Path, pair: Any, url: str, listed: int, seed: int, place: Path) -> float:
    file = place / "bench.json"
    arguments = {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "target",
        "tokenizer": str(pair.tokenizer.resolve()),
        "dataset-name": "random",
        "random-input-len": INPUT,
        "random-output-len": OUTPUT,
        "num-prompts": PROMPTS,
        "max-concurrency": CONCURRENCY,
        "logprobs": listed,
        "temperature": 1.0,
        "seed": seed,
        "result-filename": str(file),
    }
    flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    script = "import asyncio, argparse; from vllm.benchmarks import serve; p = argparse.ArgumentParser(); "
    script += "serve.add_cli_args(p); serve.main(p.parse_args())"
    command = [str(python), "-c", script, *flags, "--ignore-eos", "--save-result", "--disable-tqdm"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return float(json.loads(file.read_text())["output_throughput"])


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Generation by servers against vLLM's load generator\n"
    yield (
        f"One vLLM server of the reference pair's target. {PROMPTS} prompts of {INPUT} random tokens, {OUTPUT} new tokens each "
        f"at temperature 1, {CONCURRENCY} requests at a time. Ours checks the weights, and stores tokens and distributions; "
        "`vllm.benchmarks.serve` streams, with `--ignore-eos`. "
        "The server runs on one core, the clients on the other. Output tokens per second, medians of pairs.\n"
    )
    yield "| log-probabilities | generate | vllm.benchmarks.serve | ratio |"
    yield "|---|---|---|---|"
    for listed, row in figure.items():
        ratio = row["ratio"]
        yield (
            f"| {listed} | {row['ours']:,.0f} | {row['vllm']:,.0f} | {ratio['median']:.2f} ({ratio['lowest']:.2f} to "
            f"{ratio['highest']:.2f}) |"
        )
