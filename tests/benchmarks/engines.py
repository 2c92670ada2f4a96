"""Tokens per second of engines and of our decoder, measured together: the reference pair, fp32, temperature 0.

Without OMP_NUM_THREADS: engines take all cores that they find. Environments are those of `make conformance`; VLLM_PYTHON and
OPENVINO_PYTHON name others. An engine whose interpreter is not there is left out. Each figure follows an unmeasured call.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.figures import ROOT, write

GAMMAS, PROMPTS, TOKENS = (0, 1, 3, 5), {1: 16, 16: 64}, 128  # draft lengths (0: no speculation); prompts by batch


def main() -> None:
    """Needs the environments that `make conformance` makes; without any, there is nothing to write."""
    before, engines, after = _ours(), list(_engines()), _ours()
    if not engines:
        print("engines: neither .venv-engines nor .venv-openvino is here; `make conformance` makes them")
        return
    ours = [
        {**one, "tokens_per_second": median((one["tokens_per_second"], other["tokens_per_second"]))}
        for one, other in zip(before, after, strict=True)
    ]
    write("engines", "python -m tests.benchmarks engines", {"rows": [*ours, *engines]})


def _ours() -> list[dict[str, Any]]:
    from pipeline.speculation.batch import Request
    from pipeline.speculation.settings import GREEDY
    from tests.benchmarks.drafts import decoder
    from tests.benchmarks.refpair import find_pair
    from tests.conformance.subject import read_subject

    pair, rows = find_pair(), []
    target, draft = pair.load("float32")
    requests = [Request(prompt.tolist(), TOKENS, 0) for prompt in read_subject(pair.root).prompts]

    for batch, count in PROMPTS.items():
        for gamma in GAMMAS:
            made = decoder(target, draft, pair.vocabulary, gamma, GREEDY, stop_tokens=pair.stop_tokens)
            for _ in range(2):  # the first is not measured
                began = time.perf_counter()
                batches = (requests[first : first + batch] for first in range(0, count, batch))
                tokens = sum(completion.length for some in batches for completion in made.decode(some))
                seconds = time.perf_counter() - began
            rows.append({"engine": "understudy", "batch": batch, "gamma": gamma, "tokens_per_second": tokens / seconds})
    return rows


def _engines() -> Iterator[dict[str, Any]]:
    from tests.benchmarks.refpair import bench_store
    from tests.conformance.engines import Engine, openvino_job, vllm_job
    from tests.conformance.subject import read_subject

    subject = read_subject(bench_store())
    vllm = Engine("engine_vllm.py", _interpreter("VLLM_PYTHON", ".venv-engines"), "libiomp5.so")
    openvino = Engine("engine_openvino.py", _interpreter("OPENVINO_PYTHON", ".venv-openvino"))
    drafts = {gamma: subject.draft if gamma else None for gamma in GAMMAS}
    for batch, count in PROMPTS.items() if vllm.interpreter.exists() else ():
        asked, calls = subject.prompts[:count], [(0.0, 0), (0.0, 0)]
        for gamma, draft in drafts.items():
            job = vllm_job(subject.target, draft, asked, TOKENS, calls, gamma=gamma, batch=batch)
            yield _row(vllm.run(job), batch, gamma)
    with tempfile.TemporaryDirectory() as work:
        for gamma, draft in drafts.items() if openvino.interpreter.exists() else ():
            stop, asked = subject.stop_tokens[0], subject.prompts[: PROMPTS[1]]
            job = openvino_job(subject.target, draft, asked, TOKENS, Path(work), stop_token=stop, gamma=gamma)
            yield _row(openvino.run(job), 1, gamma)


def _interpreter(variable: str, environment: str) -> Path:
    return Path(os.environ.get(variable, ROOT / environment / "bin" / "python"))


def _row(result: dict[str, Any], batch: int, gamma: int) -> dict[str, Any]:
    call = result["calls"][-1]
    tokens = sum(len(emitted) for emitted in call["tokens"])
    return {
        "engine": result["engine"],
        "version": result["version"],
        "batch": batch,
        "gamma": gamma,
        "tokens": tokens,
        "tokens_per_second": tokens / call["seconds"],
    }


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
