"""Generation by servers, against stand-ins that speak vLLM's protocol on real sockets: throughput of 4 endpoints, and faults.

The stand-ins have a pure function in the place of a model. Those of the throughput wait for a fixed time for each request, so
that the endpoints are the bottleneck, as servers with a large model are.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.figures import write
from tests.served import NEW, QUICK, config_of, greedy, identity_of, settings_of, some_prompts
from tests.standin_server import EOS, FAULTS, VOCABULARY, Fault, StandIn, cut_at, in_processes, log_p_of, running

LATENCY, CONCURRENCY, PROMPTS, PAIRS = 0.5, 8, 1400, 3
INJECTED, ROUND = 1000, 500


def main() -> None:
    write("servers", "python -m tests.benchmarks servers", {"throughput": throughput(), "faults": faults()})


def throughput() -> dict[str, Any]:
    """Completions a second by 1 and by 4 endpoints, in turns."""
    found: dict[int, list[float]] = {1: [], 4: []}
    with in_processes(4, "--latency", str(LATENCY)) as servers:
        for _ in range(PAIRS):
            for number, rates in found.items():
                rates.append(PROMPTS / asyncio.run(_seconds(servers[:number])))
    ratios = [four / one for one, four in zip(found[1], found[4], strict=True)]
    return {
        "latency_s": LATENCY,
        "concurrency": CONCURRENCY,
        "completions": PROMPTS,
        "per_second": {str(number): statistics.median(rates) for number, rates in found.items()},
        "ratio": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
    }


async def _seconds(servers: Sequence[StandIn]) -> float:
    """Of a generation, without the questions before it."""
    from pipeline.generation.completion_plan import plan_completions
    from pipeline.generation.served import generate_by_servers
    from pipeline.generation.served_completion import Served
    from pipeline.servers.connect import connect, identify
    from pipeline.speculation.settings import Sampling
    from tests.fakes import quiet

    config = config_of(*servers, concurrency=CONCURRENCY)
    identity = await identify(config, "v1", "float32", [], quiet())
    with tempfile.TemporaryDirectory() as out:
        async with connect(config, identity, VOCABULARY, quiet()) as (target, abilities):
            served = Served(target, abilities, identity, config.logprobs, VOCABULARY, [EOS])
            requests = plan_completions(some_prompts(PROMPTS), Sampling())
            began = time.perf_counter()
            await generate_by_servers(served, requests, settings_of(Sampling(), shard=256), Path(out), quiet())
            return time.perf_counter() - began


def faults() -> dict[str, Any]:
    """What is stored while two of three endpoints fail in all ways; each generation is run again until it ends well."""
    counts, found = Counter[str](), Counter[str]()
    rng, round_ = random.Random(0), 0
    while sum(counts.values()) < INJECTED:
        with ExitStack() as stack:
            servers = [stack.enter_context(running(StandIn())) for _ in range(3)]
            found.update(_round(servers, rng, counts, greedily=round_ % 2 == 0))
        round_ += 1
    return {"injected": dict(sorted(counts.items())), **{name: found[name] for name in _FIGURES}}


_FIGURES = ("generations", "runs", "completions", "lost", "double", "other")


def _round(servers: Sequence[StandIn], rng: random.Random, counts: Counter[str], greedily: bool) -> dict[str, int]:
    """One generation."""
    from pipeline.servers.identity import OtherWeights
    from pipeline.speculation.settings import GREEDY, Sampling
    from tests.served import generate

    # Short ones, so that silence and slowness are known as such; a restarted server is away for a moment.
    config = config_of(*servers, timeout_seconds=0.4, patience_seconds=30.0)
    identity, sampling = identity_of(config), GREEDY if greedily else Sampling()
    kinds = [*FAULTS, "cut at some byte", "restart", "restart with other weights"]

    def schedule(server: StandIn) -> Any:
        def fault(number: int) -> Fault | None:
            if rng.random() > 0.25:
                return None
            kind = rng.choice(kinds)
            counts[kind] += 1
            return FAULTS.get(kind) or _made(kind, server, rng)

        return fault

    prompts, runs = some_prompts(ROUND), 0
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out"
        while True:
            runs += 1
            for server in servers:
                server.weights = 0
            for server in servers[1:]:
                server.faults = schedule(server)
            try:
                found = generate(config, prompts, out, sampling, identity, replace(QUICK, attempts=30), shard=64)
                break
            except OtherWeights:
                continue
        sent = {
            (tuple(prompt), tuple(tokens))
            for server in servers
            for (prompt, tokens), weights in zip(server.served, server.served_by, strict=True)
            if weights == 0
        }
        wrong = sum(not _is_right(item, sent) for item in found)
        ids = Counter(item.id for item in found)
    return {
        "generations": 1,
        "runs": runs,
        "completions": len(found),
        "lost": len({prompt.id for prompt in prompts} - set(ids)),
        "double": sum(count - 1 for count in ids.values()),
        "other": wrong,
    }


def _is_right(item: Any, sent: set[Any]) -> bool:
    """Greedy: the exact completion. Sampled: one that a server with the target's weights sent as an answer to this prompt, with
    the exact log p."""
    prompt, tokens = item.prompt.tolist(), item.tokens.tolist()
    if item.greedy:
        return bool(greedy(prompt, NEW) == tokens)
    exact = [log_p_of([*prompt, *tokens[:place]])[token] for place, token in enumerate(tokens)]
    return (tuple(prompt), tuple(tokens)) in sent and bool(np.allclose(exact, item.log_p, atol=1e-5))


def _made(kind: str, server: StandIn, rng: random.Random) -> Fault:
    if kind == "cut at some byte":
        return cut_at(rng.random())

    async def restart(request: Any, raw: bytes) -> Any:
        if kind == "restart with other weights":
            server.weights = 1
        await server.restart(0.05)
        await asyncio.sleep(10)

    return restart


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    rates, ratio = figure["throughput"]["per_second"], figure["throughput"]["ratio"]
    yield "## Generation by servers\n"
    yield (
        "Stand-ins that speak vLLM's protocol on real sockets, in processes of their own; no model runs. They take "
        f"{figure['throughput']['latency_s']:g} s for a request, {figure['throughput']['concurrency']} at a time each. "
        f"Completions per second: {rates['1']:.1f} from one endpoint, {rates['4']:.1f} from four: "
        f"{ratio['median']:.2f} times (median of pairs; {ratio['lowest']:.2f} to {ratio['highest']:.2f}).\n"
    )
    found = figure["faults"]
    yield (
        f"Faults injected into two of three endpoints: {sum(found['injected'].values()):,} of {len(found['injected'])} kinds, "
        f"in {found['generations']} generations of {ROUND} completions ({found['runs']} runs: a server that came back with other "
        "weights ends a run). At temperature 0 each stored completion is compared with the exact one, at temperature 1 with what "
        "the servers sent.\n"
    )
    yield "| completions | lost | stored twice | not the target's |"
    yield "|---|---|---|---|"
    yield f"| {found['completions']:,} | {found['lost']} | {found['double']} | {found['other']} |"
