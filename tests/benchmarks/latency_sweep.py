"""Step costs fitted to half of a measured sweep and tested on the other half: our decoder in bf16, by batch size and gamma."""

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
_MAPE_AIM, _R2_AIM, _REGRET_AIM = 0.05, 0.98, 0.03


def main() -> None:
    write("latency_sweep", "python -m tests.benchmarks latency_sweep", _measure())


def _measure() -> dict[str, Any]:
    from pipeline.latency.costs.measure import measure_profile
    from pipeline.progress import Progress
    from pipeline.speculation.decoder import Decoder
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.refpair import find_pair, windows

    pair = find_pair()
    target, draft = pair.load("bfloat16")
    decoders = {
        gamma: Decoder(target, draft if gamma else None, sampling=Sampling(), vocabulary=pair.vocabulary, gamma=gamma)
        for gamma in GAMMAS
    }
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
        target, draft, pair.vocabulary, BATCHES, max(GAMMAS), (PROMPT, 4 * PROMPT), (32, 128), {}, Progress(), repeats=9
    )
    return {"rows": rows, "profile": profile.json(), "turns": TURNS, **_judged(rows)}


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


def _judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Two-fold cross-validation: points alternate between the folds like the colours of a chessboard."""
    import numpy as np

    from pipeline.latency.costs.fitted import fit_measurements
    from pipeline.latency.costs.measurements import Measurement

    found = []
    for colour in (0, 1):
        ours, theirs = ([row for row in rows if _colour(row) == side] for side in (colour, 1 - colour))
        fitted = fit_measurements(
            [
                Measurement(
                    where="",
                    requests=row["requests"],
                    gamma=row["gamma"],
                    tokens_per_step=row["length"],
                    step_seconds=row["step"],
                )
                for row in ours
            ]
        )
        steps = np.array([fitted.step_seconds(row["requests"], row["gamma"]).item() for row in theirs])
        lines = np.array([fitted.costs.step_seconds(row["requests"], row["gamma"]).item() for row in theirs])
        length = np.array([row["length"] for row in theirs])
        tpot = np.array([row["step"] for row in theirs]) / length
        found.append(
            {
                "mape": float(np.abs(steps / length / tpot - 1).mean()),
                "mape_of_the_line": float(np.abs(lines / length / tpot - 1).mean()),
                "r2": float(1 - ((steps / length - tpot) ** 2).sum() / ((tpot - tpot.mean()) ** 2).sum()),
                "regret": {str(batch): _regret(rows, fitted, batch) for batch in BATCHES},
            }
        )
    return {"halves": found}


def _colour(row: dict[str, Any]) -> int:
    return (BATCHES.index(row["requests"]) + GAMMAS.index(row["gamma"])) % 2


def _regret(rows: list[dict[str, Any]], fitted: Any, batch: int) -> float:
    """Measured time of the draft length chosen by the fitted costs / measured time of the best one - 1."""
    mine = [row for row in rows if row["requests"] == batch]
    measured = {row["gamma"]: row["step"] / row["length"] for row in mine}
    guessed = {row["gamma"]: fitted.step_seconds(batch, row["gamma"]).item() / row["length"] for row in mine}
    return measured[min(guessed, key=lambda gamma: guessed[gamma])] / min(measured.values()) - 1


def section(figure: dict[str, Any]) -> Iterator[str]:
    """The section of BENCHMARKS.md."""
    yield "## Step costs fitted to half of a sweep, tested on the other half\n"
    yield (
        f"The reference pair in bf16 with our decoder, {len(BATCHES)} batch sizes x {len(GAMMAS)} draft lengths. Two-fold "
        "cross-validation: points alternate between two halves like the colours of a chessboard; costs are fitted to one half "
        f"and predict TPOT of the other. Step times are medians of {figure['turns']} turns in random order. Regret: measured "
        "TPOT at the draft length that the fitted costs choose, relative to the best measured one.\n"
    )
    yield (
        f"| fitted to | MAPE (aim {_MAPE_AIM:.0%}) | MAPE, linear model only | R2 (aim {_R2_AIM:g}) | largest regret (aim "
        f"{_REGRET_AIM:.0%}) |"
    )
    yield "|---|---|---|---|---|"
    for name, half in zip(("first half", "second half"), figure["halves"], strict=True):
        yield (
            f"| {name} | **{half['mape']:.1%}** | {half['mape_of_the_line']:.1%} | **{half['r2']:.4f}** | "
            f"**{max(half['regret'].values()):.1%}** |"
        )
    yield ""
    yield "| batch size | " + " | ".join(f"gamma {gamma}: TPOT ms" for gamma in GAMMAS) + " |"
    yield "|---|" + "---|" * len(GAMMAS)
    for batch in BATCHES:
        tpot = {row["gamma"]: 1e3 * row["step"] / row["length"] for row in figure["rows"] if row["requests"] == batch}
        yield f"| {batch} | " + " | ".join(f"{tpot[gamma]:.2f}" for gamma in GAMMAS) + " |"
