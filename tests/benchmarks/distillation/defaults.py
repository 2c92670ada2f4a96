"""`python -m tests.benchmarks distillation_defaults`: what a user gets who sets nothing, at equal time, against TRL's trainers
with their best rates.

About an hour and a half on 2 cores beside the pair. Cells are those of the distillation benchmark.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.benchmarks.answers import interval, points
from tests.benchmarks.distillation.cells import (
    LOSS_SECONDS,
    REGIMES,
    SECONDS,
    SEEDS,
    STOCK,
    Cell,
    read_cell,
    run_missing,
)
from tests.benchmarks.distillation.labels import REGIME_LABELS, by_seed, label
from tests.benchmarks.distillation.pair import make_pair
from tests.benchmarks.distillation.rates import tried_rates
from tests.benchmarks.distillation.speed import measure_speed
from tests.benchmarks.distillation.summary import rows_of
from tests.benchmarks.figures import write

SHIPPED = "shipped"
PEERS = ("trl_sft", "trl_gkd")
TABLE = (STOCK, SHIPPED, "shipped_without_prompts", *PEERS)
FIXED = (1.5e-3, 3e-3, 6e-3, 12e-3)  # rates beside that of the trials
AIMS = {"near": {"trl_sft": 6.0, "trl_gkd": 3.0}, "moved": {"trl_sft": 11.2, "trl_gkd": 8.3}}  # points ahead

_HOW = """
The same benchmark with the defaults of `understudy init` (64 stored tokens, prompts trained on with weight 0.5, learning rate
by trials, whose time counts) and Muon, because this draft was pre-trained with it. SFT and GKD have the best of their rates,
found by doubling and halving until dev acceptance after 45 s gets worse.
"""


def main() -> None:
    make_pair()
    measure_speed()
    run_missing(_cells())
    write("distillation_defaults", "python -m tests.benchmarks distillation_defaults", figure())


def figure() -> dict[str, Any]:
    """From whatever cells there are."""
    return {
        "seconds": SECONDS,
        "rates": {name: tried for name, tried in tried_rates().items() if name.rpartition("/")[2] in PEERS},
        "speed": measure_speed(),
        "regimes": {
            regime: {
                "equal_time": rows_of(regime, TABLE, beside=SHIPPED),
                "fixed": {SHIPPED: _by_rate(regime)},
            }
            for regime in REGIMES
        },
    }


def _by_rate(regime: str) -> dict[str, float]:
    """Acceptance of the examination by rate; that of the trials is `auto RATE`."""
    found = {}
    for rate in (None, *FIXED):
        cell, stock = (
            read_cell(Cell(regime, SHIPPED, SEEDS[0], seconds=LOSS_SECONDS, rate=rate)),
            read_cell(Cell(regime, STOCK, 0)),
        )
        if cell is not None and stock is not None:
            name = f"{cell['learning_rate']:g}"
            found[name if rate else f"auto {name}"] = sum(cell["accepted"]) / sum(row[2] for row in stock["prompts"])
    return found


def _cells() -> Iterator[Cell]:
    """What matters first."""
    for regime in REGIMES:
        yield Cell(regime, STOCK, 0)
    for seed in SEEDS:
        yield from (Cell(regime, method, seed) for regime in REGIMES for method in TABLE if method != STOCK)
    for regime in REGIMES:
        yield from (Cell(regime, SHIPPED, SEEDS[0], seconds=LOSS_SECONDS, rate=rate) for rate in (None, *FIXED))


def section(found: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Defaults\n"
    yield " ".join(_HOW.split()) + "\n"
    for regime in REGIMES:
        yield f"### At equal time ({found['seconds']:.0f} s), {REGIME_LABELS[regime]}\n"
        yield from _table(found["regimes"][regime]["equal_time"], regime)
    yield "Rates tried by the peers: " + "; ".join(_tried(found["rates"])) + ".\n"
    yield f"### The rate of the trials, and fixed ones: acceptance after {LOSS_SECONDS:.0f} s\n"
    yield "| | rate: acceptance |"
    yield "|---|---|"
    for regime in REGIMES:
        if tried := found["regimes"][regime]["fixed"][SHIPPED]:
            rates = ", ".join(f"{rate}: {value:.3f}" for rate, value in tried.items())
            yield f"| {label(f'{regime}/{SHIPPED}')} | {rates} |"
    yield ""


def _table(rows: Mapping[str, Any], regime: str) -> Iterator[str]:
    yield (
        "| | steps | learning rate | acceptance | by seed | tokens per target call "
        f"| {label(SHIPPED)} ahead, points (aim) |"
    )
    yield "|---|---|---|---|---|---|---|"
    for method, row in rows.items():
        alpha, aim = row["acceptance"], AIMS[regime].get(method)
        ahead = points(row["over"], -1) + (f" ({aim:g})" if aim else "")
        yield (
            f"| {label(method)} | {row.get('steps', 0):.0f} | {row.get('learning_rate', 0):g} "
            f"| {interval(alpha)} | {by_seed(row)} | {row['tokens_per_target_call']:.2f} "
            f"| {'' if method == SHIPPED else ahead} |"
        )
    yield ""


def _tried(rates: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, tried in rates.items():
        yield f"{label(name)}: " + ", ".join(f"{rate}: {value:.3f}" for rate, value in tried.items())
