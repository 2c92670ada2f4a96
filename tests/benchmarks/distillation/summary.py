"""What the cells say together: acceptance by method with intervals by prompt, differences paired by prompt."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.distillation.cells import (
    CANDIDATES,
    LOSS_SECONDS,
    LOSSES,
    OURS,
    PEERS,
    REGIMES,
    SECONDS,
    SEEDS,
    SIBLINGS,
    STOCK,
    STORES,
    TWIN,
    Cell,
    read_cell,
)
from tests.benchmarks.distillation.rates import tried_rates

_CONFIDENCE = 0.95
ONLINE = "online"


def summarise() -> dict[str, Any]:
    """From whatever cells there are: a row a method, with what it is behind or ahead of."""
    return {
        "seconds": SECONDS,
        "loss_seconds": LOSS_SECONDS,
        "rates": tried_rates(),
        "regimes": {
            regime: {
                "equal_time": _rows(regime, (STOCK, OURS, *PEERS), beside=OURS),
                "losses": _rows(regime, LOSSES, beside=TWIN, seconds=LOSS_SECONDS),
                "stores": _rows(regime, (ONLINE, TWIN, *STORES), beside=ONLINE, like=ONLINE),
                "candidates": _rows(regime, (TWIN, *CANDIDATES), beside=TWIN, like=ONLINE),
                "siblings": _rows(regime, SIBLINGS, beside=SIBLINGS[1]),
            }
            for regime in REGIMES
        },
    }


def _rows(
    regime: str, methods: Sequence[str], beside: str, like: str | None = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """By method; `over` is its acceptance less that of `beside`."""
    prompts = read_cell(Cell(regime, STOCK, 0))
    found = {
        method: cells
        for method in methods
        if (cells := _cells(regime, method, None if method == like else like, seconds)) and prompts
    }
    if prompts is None or beside not in found:
        return {}
    domains = np.array([domain for _, domain, _ in prompts["prompts"]])
    tokens_N = np.array([float(tokens) for _, _, tokens in prompts["prompts"]])
    base_N = _accepted(found[beside])
    return {
        method: _row(cells, domains, tokens_N) | {"over": _gain(_accepted(cells), base_N, tokens_N, domains)}
        for method, cells in found.items()
    }


def _cells(regime: str, method: str, like: str | None, seconds: float) -> list[dict[str, Any]]:
    cells = (read_cell(Cell(regime, method, seed, like, seconds)) for seed in SEEDS)
    return [cell for cell in cells if cell is not None]


def _row(cells: list[dict[str, Any]], domains: NDArray[np.str_], tokens_N: NDArray[np.float64]) -> dict[str, Any]:
    accepted_N = _accepted(cells)
    row: dict[str, Any] = {
        "acceptance": _gain(accepted_N, np.zeros_like(accepted_N), tokens_N, domains),
        "by_seed": [sum(cell["accepted"]) / tokens_N.sum() for cell in cells],
        "tokens_per_target_call": float(np.mean([tokens_N.sum() / sum(cell["calls"]) for cell in cells])),
        "domains": by_domain(domains, tokens_N, accepted_N),
    }
    for name in ("steps", "seconds", "tokens", "learning_rate", "peak_mib"):
        if name in cells[0]:
            row[name] = median(cell[name] for cell in cells)
    return row


def by_domain(
    domains: NDArray[np.str_], tokens_N: NDArray[np.float64], accepted_N: NDArray[np.float64]
) -> dict[str, float]:
    """Acceptance rate of each domain."""
    return {
        str(name): float(accepted_N[domains == name].sum() / tokens_N[domains == name].sum())
        for name in sorted(set(domains))
    }


def _accepted(cells: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Mass of each prompt, the mean over seeds, in the order of ids."""
    mean_N: NDArray[np.float64] = np.mean([cell["accepted"] for cell in cells], axis=0)
    return mean_N


def _gain(one_N: Any, other_N: Any, tokens_N: Any, domains: Any) -> dict[str, Any]:
    """Of the one over the other, paired by prompt."""
    from pipeline.acceptance.intervals import ratio_gain

    return ratio_gain(one_N, tokens_N, other_N, tokens_N, list(domains), _CONFIDENCE).json()
