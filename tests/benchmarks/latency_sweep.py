"""A measured sweep of our decoder in bf16, by batch size and draft length; `latency_models` judges fits to it."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from random import Random
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

BATCHES, GAMMAS, PROMPT, ROUNDS, TURNS = (1, 2, 4, 8, 16, 32), tuple(range(9)), 64, 16, 40
_WARM = 2  # steps
_VISITS = {1: 4, 2: 3, 4: 2}  # measurements per turn by batch size: short ones are noisier


def main() -> None:
    write("latency_sweep", "python -m tests.benchmarks latency_sweep", _measure())


def _measure() -> dict[str, Any]:
    from pipeline.latency.costs.measure import Grid, measure_profile
    from pipeline.progress import Progress
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.drafts import decoder
    from tests.benchmarks.refpair import find_pair, windows

    pair = find_pair()
    target, draft = pair.load("bfloat16")
    decoders = {gamma: decoder(target, draft, pair.vocabulary, gamma, Sampling()) for gamma in GAMMAS}
    prompts = windows(pair, max(BATCHES), PROMPT, seed=1)
    seconds: dict[tuple[int, int], list[float]] = {}
    emitted: dict[int, list[tuple[int, int]]] = {}
    order = Random(0)
    places = [(batch, gamma) for batch, gamma in product(BATCHES, GAMMAS) for _ in range(_VISITS.get(batch, 1))]
    for turn in range(TURNS + 1):
        order.shuffle(places)  # so that a slow moment does not fall on neighbouring points
        for visit, (batch, gamma) in enumerate(places):
            step, counted = _step(decoders[gamma], prompts[:batch], seed=len(places) * turn + visit)
            if turn:
                seconds.setdefault((batch, gamma), []).append(step)
                emitted.setdefault(gamma, []).append(counted)
    # Tokens per round do not depend on the batch size; pooling them reduces the noise.
    lengths = {
        gamma: sum(tokens for tokens, _ in all_) / sum(rounds for _, rounds in all_) for gamma, all_ in emitted.items()
    }
    rows = [
        {"requests": batch, "gamma": gamma, "step": median(seconds[batch, gamma]), "length": lengths[gamma]}
        for batch, gamma in product(BATCHES, GAMMAS)
    ]
    profile = measure_profile(
        target,
        draft,
        pair.vocabulary,
        Grid(batches=BATCHES, gammas=max(GAMMAS), contexts=(PROMPT, 4 * PROMPT), prompts=(32, 128), repeats=9),
        about={},
        progress=Progress(),
    )
    return {"rows": rows, "profile": profile.json(), "turns": TURNS}


class _Enough(Exception):
    """Stops decoding once enough steps were measured."""


def _step(decoder: Any, prompts: list[list[int]], seed: int) -> tuple[float, tuple[int, int]]:
    """Median seconds of a step with all requests active, and the total of tokens and rounds."""
    import time

    from pipeline.speculation.batch import Request

    limit = (ROUNDS + _WARM) * (decoder.length.most + 1) + 1  # no request ends earlier
    requests = [Request(prompt, limit, seed * len(prompts) + row) for row, prompt in enumerate(prompts)]
    times, emitted, steps = list[float](), list[int](), list[float]()

    def on_round(round_: Any) -> None:
        times.append(time.perf_counter())
        if len(round_.numbers) == len(prompts) and len(times) > _WARM:
            steps.append(times[-1] - times[-2])
            emitted.extend(map(len, round_.emitted))
        if len(steps) == ROUNDS:
            raise _Enough

    with suppress(_Enough):
        decoder.decode(requests, on_round)
    return median(steps), (sum(emitted), len(emitted))


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Step times of our decoder\n"
    yield (
        f"The reference pair in bf16, {len(BATCHES)} batch sizes x {len(GAMMAS)} draft lengths. Medians of {figure['turns']} "
        "turns in random order.\n"
    )
    yield "| batch size | " + " | ".join(f"gamma {gamma}: TPOT ms" for gamma in GAMMAS) + " |"
    yield "|---|" + "---|" * len(GAMMAS)
    for batch in BATCHES:
        tpot = {row["gamma"]: 1e3 * row["step"] / row["length"] for row in figure["rows"] if row["requests"] == batch}
        yield f"| {batch} | " + " | ".join(f"{tpot[gamma]:.2f}" for gamma in GAMMAS) + " |"
