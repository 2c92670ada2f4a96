"""Speedup by batch size: it falls with the batch, because verification costs more."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

ACCEPTANCE, GAMMAS, BATCHES, REPEATS = 0.8, (1, 3, 5), (1, 4, 16), 3


def main() -> None:
    write("decoder_batch", "python -m tests.benchmarks decoder_batch", {"rows": _measure(), "acceptance": ACCEPTANCE})


def _measure() -> list[dict[str, Any]]:
    from tests.benchmarks.realpair import decoders_by_gamma, real_pair
    from tests.benchmarks.timing import seconds_per_token

    target, draft = real_pair()
    decoders = decoders_by_gamma(target, draft, (0, *GAMMAS), ACCEPTANCE)
    rows = []
    for batch in BATCHES:
        speedups: dict[int, list[float]] = {gamma: [] for gamma in GAMMAS}
        plain = []
        for number in range(REPEATS + 1):
            took = {gamma: seconds_per_token(one, 64, 48, number, batch) for gamma, one in decoders.items()}
            if number:
                plain.append(1 / took[0].seconds)
                for gamma in GAMMAS:
                    speedups[gamma].append(took[0].seconds / took[gamma].seconds)
        rows.append(
            {
                "batch": batch,
                "plain_tokens_per_second": median(plain),
                "speedup": {gamma: median(values) for gamma, values in speedups.items()},
            }
        )
    return rows


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    gammas = list(figure["rows"][0]["speedup"])
    yield "## Speedup by batch size\n"
    yield f"The same pair, imposed acceptance {figure['acceptance']}: tokens per second with the draft / without.\n"
    yield "| batch | plain tokens/s |" + "".join(f" gamma {gamma} |" for gamma in gammas)
    yield "|---|---|" + "---|" * len(gammas)
    for row in figure["rows"]:
        speedups = "".join(f" {row['speedup'][gamma]:.2f} |" for gamma in gammas)
        yield f"| {row['batch']} | {row['plain_tokens_per_second']:.1f} |{speedups}"
