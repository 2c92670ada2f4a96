"""Speedup by batch size: it falls with the batch, because verification costs more."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

ACCEPTANCE, GAMMAS, BATCHES, REPEATS = 0.8, (1, 3, 5), (1, 4, 16), 3


def main() -> None:
    write("decoder_batch", "python -m tests.benchmarks decoder_batch", {"rows": _measure(), "acceptance": ACCEPTANCE})


def _measure() -> list[dict[str, Any]]:
    from tests.benchmarks.realpair import real_decoder, real_pair
    from tests.benchmarks.timing import in_turns, median_ratio, seconds_per_token

    pair, rows = real_pair(), []
    decoders = {gamma: real_decoder(*pair, gamma, ACCEPTANCE) for gamma in (0, *GAMMAS)}
    for batch in BATCHES:
        ways = {
            gamma: lambda turn, one=one, batch=batch: seconds_per_token(one, 64, 48, turn, batch).seconds
            for gamma, one in decoders.items()
        }
        took = in_turns(ways, REPEATS)
        rows.append(
            {
                "batch": batch,
                "plain_tokens_per_second": median(1 / seconds for seconds in took[0]),
                "speedup": {gamma: median_ratio(took[0], took[gamma]) for gamma in GAMMAS},
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
