"""`python -m tests.benchmarks distillation_defaults`: what a user gets who sets nothing, at equal time, against TRL's trainers
with their best rates; and what feature matching gains.

About an hour and a half on 2 cores beside the pair. Cells are those of the distillation benchmark.
"""

from collections.abc import Iterator, Mapping
from typing import Any

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
from tests.benchmarks.distillation.labels import REGIME_LABELS, label
from tests.benchmarks.distillation.pair import make_pair
from tests.benchmarks.distillation.rates import tried_rates
from tests.benchmarks.distillation.speed import measure_speed
from tests.benchmarks.distillation.summary import rows_of
from tests.benchmarks.figures import write

SHIPPED = "shipped"
PEERS = ("trl_sft", "trl_gkd")
TABLE = (STOCK, SHIPPED, "shipped_without_prompts", *PEERS)
FIXED = {  # rates beside that of the trials
    SHIPPED: (1.5e-3, 3e-3, 6e-3, 12e-3),
    "shipped_adamw": (1e-3, 2e-3, 4e-3, 8e-3),
    "shipped_lora": (4e-3, 8e-3, 16e-3, 32e-3),
}
AIMS = {"near": {"trl_sft": 6.0, "trl_gkd": 3.0}, "moved": {"trl_sft": 11.2, "trl_gkd": 8.3}}  # points ahead
FEATURES = ("online", "features", "features_clipped")

_HOW = """
The same benchmark with the defaults of `understudy init` (64 stored tokens, prompts trained on with weight 0.5, learning rate
by trials, whose time counts) and Muon, because this draft was pre-trained with it. SFT and GKD have the best of their rates,
found by doubling and halving until dev acceptance after 45 s gets worse.
"""
_FEATURES = """
One minus the cosine of the target's last hidden state and a linear map of the draft's is added to the online forward KL, with
weight 1. In the control it enters only the norm by which gradients are clipped.
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
                "features": rows_of(regime, FEATURES, beside=FEATURES[0], like=FEATURES[0]),
                "fixed": {method: _by_rate(regime, method) for method in FIXED},
            }
            for regime in REGIMES
        },
    }


def _by_rate(regime: str, method: str) -> dict[str, float]:
    """Acceptance of the examination by rate; that of the trials is `auto RATE`."""
    found = {}
    for rate in (None, *FIXED[method]):
        cell, stock = (
            read_cell(Cell(regime, method, SEEDS[0], seconds=LOSS_SECONDS, rate=rate)),
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
        for method, rates in FIXED.items():
            yield from (Cell(regime, method, SEEDS[0], seconds=LOSS_SECONDS, rate=rate) for rate in (None, *rates))
    for seed in SEEDS:
        yield from (Cell("near", method, seed, like="online" if method != "online" else None) for method in FEATURES)


def section(found: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Defaults\n"
    yield " ".join(_HOW.split()) + "\n"
    for regime in REGIMES:
        yield f"### At equal time ({found['seconds']:.0f} s), {REGIME_LABELS[regime]}\n"
        yield from _table(found["regimes"][regime]["equal_time"], SHIPPED, regime)
    yield "Rates tried by the peers: " + "; ".join(_tried(found["rates"])) + ".\n"
    if any(found["regimes"][regime]["fixed"].values() for regime in REGIMES):
        yield f"### The rate of the trials, and fixed ones: acceptance after {LOSS_SECONDS:.0f} s\n"
        yield "| | rate: acceptance |"
        yield "|---|---|"
        for regime in REGIMES:
            for method, tried in found["regimes"][regime]["fixed"].items():
                if tried:
                    rates = ", ".join(f"{rate}: {value:.3f}" for rate, value in tried.items())
                    yield f"| {label(f'{regime}/{method}')} | {rates} |"
        yield ""
    if any(found["regimes"][regime]["features"] for regime in REGIMES):
        yield "### Feature matching, at equal steps\n"
        yield " ".join(_FEATURES.split()) + "\n"
        for regime in REGIMES:
            if rows := found["regimes"][regime]["features"]:
                yield f"{REGIME_LABELS[regime].capitalize()}:\n"
                yield from _table(rows, FEATURES[0], "")


def _table(rows: Mapping[str, Any], beside: str, regime: str) -> Iterator[str]:
    """`regime`: where the rows are held against aims."""
    over = f"{label(beside)} ahead, points (aim)" if regime else "over the first, points"
    yield f"| | steps | learning rate | acceptance | by seed | tokens per target call | {over} |"
    yield "|---|---|---|---|---|---|---|"
    for method, row in rows.items():
        alpha, gain, sign = row["acceptance"], row["over"], -1 if regime else 1
        low, high = sorted(sign * 100 * gain[name] for name in ("low", "high"))
        aim = AIMS.get(regime, {}).get(method)
        ahead = f"{sign * 100 * gain['value']:+.1f} [{low:+.1f}, {high:+.1f}]" + (f" ({aim:g})" if aim else "")
        yield (
            f"| {label(method)} | {row.get('steps', 0):.0f} | {row.get('learning_rate', 0):g} "
            f"| {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}] "
            f"| {', '.join(f'{value:.3f}' for value in row['by_seed'])} | {row['tokens_per_target_call']:.2f} "
            f"| {'' if method == beside else ahead} |"
        )
    yield ""


def _tried(rates: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, tried in rates.items():
        yield f"{label(name)}: " + ", ".join(f"{rate}: {value:.3f}" for rate, value in tried.items())
