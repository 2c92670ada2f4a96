"""What the cells say together: acceptance by method, differences paired by prompt, intervals by document."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.distillation.cells import (
    ADAMW,
    LOSS_SECONDS,
    LOSSES,
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
from tests.benchmarks.distillation.speed import OURS

_CONFIDENCE = 0.95
Floats = NDArray[np.float64]
ONLINE = "online"


def summarise() -> dict[str, Any]:
    """From whatever cells there are: a row a method, with what it is behind or ahead of."""
    return {
        "seconds": SECONDS,
        "loss_seconds": LOSS_SECONDS,
        "rates": tried_rates(),
        "regimes": {
            regime: {
                "equal_time": rows_of(regime, (STOCK, OURS, ADAMW, *PEERS), beside=OURS),
                "losses": rows_of(regime, LOSSES, beside=TWIN, seconds=LOSS_SECONDS),
                "stores": rows_of(regime, (ONLINE, TWIN, *STORES), beside=ONLINE, like=ONLINE),
                "siblings": rows_of(regime, SIBLINGS, beside=SIBLINGS[1]),
            }
            for regime in REGIMES
        },
    }


def rows_of(
    regime: str, methods: Sequence[str], beside: str, like: str | None = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """By method, over the seeds that all of them have; `over` is its acceptance less that of `beside`."""
    stock = read_cell(Cell(regime, STOCK, 0))
    found = {method: _cells(regime, method, None if method == like else like, seconds) for method in methods}
    found = {method: cells for method, cells in found.items() if cells}
    seeds = set.intersection(*({*cells} for method, cells in found.items() if method != STOCK)) if found else set()
    if stock is None or beside not in found or not seeds:
        return {}
    prompts = Prompts(stock["prompts"])
    chosen = {
        method: [cell for seed, cell in cells.items() if method == STOCK or seed in seeds]
        for method, cells in found.items()
    }
    return {
        method: _row(cells, prompts) | {"over": prompts.gain(_accepted(cells), _accepted(chosen[beside]))}
        for method, cells in chosen.items()
    }


def _cells(regime: str, method: str, like: str | None, seconds: float) -> dict[int, dict[str, Any]]:
    """By seed."""
    cells = {seed: read_cell(Cell(regime, method, seed, like, seconds)) for seed in SEEDS}
    return {seed: cell for seed, cell in cells.items() if cell is not None}


class Prompts:
    """Of a regime's examination, in the order of ids. Those cut from one document are one unit of every interval."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        _, domains, tokens, documents = zip(*rows, strict=True)
        self.domains, self.tokens_N = np.array(domains), np.array(tokens, dtype=np.float64)
        numbers, self._first_D, self._document_N = np.unique(documents, return_index=True, return_inverse=True)
        self._count = len(numbers)

    def gain(self, one_N: Floats, other_N: Floats) -> dict[str, Any]:
        """Of accepted mass over another, as rates."""
        from pipeline.acceptance.intervals import ratio_gain

        one_D, other_D, tokens_D = (self._by_document(values) for values in (one_N, other_N, self.tokens_N))
        domains = self.domains[self._first_D].tolist()
        return asdict(ratio_gain(one_D, tokens_D, other_D, tokens_D, domains, _CONFIDENCE).figure)

    def by_domain(self, accepted_N: Floats) -> dict[str, float]:
        """Acceptance rate of each."""
        return {
            str(name): float(accepted_N[self.domains == name].sum() / self.tokens_N[self.domains == name].sum())
            for name in sorted(set(self.domains))
        }

    def _by_document(self, values_N: Floats) -> Floats:
        sums: Floats = np.bincount(self._document_N, values_N, self._count).astype(np.float64)
        return sums


def _row(cells: list[dict[str, Any]], prompts: Prompts) -> dict[str, Any]:
    accepted_N, tokens = _accepted(cells), prompts.tokens_N.sum()
    row: dict[str, Any] = {
        "acceptance": prompts.gain(accepted_N, np.zeros_like(accepted_N)),
        "by_seed": [sum(cell["accepted"]) / tokens for cell in cells],
        "tokens_per_target_call": float(np.mean([tokens / sum(cell["calls"]) for cell in cells])),
        "domains": prompts.by_domain(accepted_N),
    }
    for name in ("steps", "seconds", "tokens", "learning_rate", "peak_mib"):
        if name in cells[0]:
            row[name] = median(cell[name] for cell in cells)
    return row


def _accepted(cells: list[dict[str, Any]]) -> Floats:
    """Mass of each prompt, the mean over seeds, in the order of ids."""
    mean_N: Floats = np.mean([cell["accepted"] for cell in cells], axis=0)
    return mean_N
