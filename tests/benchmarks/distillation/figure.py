"""What the cells say together: acceptance by method with intervals by prompt, paired differences, speeds, bytes."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.distillation.cells import (
    CELLS,
    OTHER_LOSSES,
    OURS,
    PEERS,
    REGIMES,
    SECONDS,
    SEEDS,
    STOCK,
    Cell,
    read_cell,
    run_missing,
)
from tests.benchmarks.distillation.generation import NEW_TOKENS, measure_generation
from tests.benchmarks.distillation.speed import measure_speed
from tests.benchmarks.figures import write

_CONFIDENCE = 0.95
_LIKE = f"{OURS}, as many steps as online"


def main() -> None:
    run_missing()
    figure = {**summarise(), "speed": measure_speed(), "generation": measure_generation()}
    write("distillation", "python -m tests.benchmarks distillation", figure)


def summarise() -> dict[str, Any]:
    """From whatever cells there are."""
    regimes = {regime: _regime(regime) for regime in REGIMES}
    return {"regimes": regimes, "seconds": SECONDS}


def _regime(regime: str) -> dict[str, Any]:
    found = {STOCK: _cells([Cell(regime, STOCK, 0)])}
    found |= {
        method: _cells([Cell(regime, method, seed) for seed in SEEDS]) for method in (OURS, *PEERS, *OTHER_LOSSES)
    }
    found[_LIKE] = _cells([Cell(regime, OURS, seed, like="online") for seed in SEEDS])
    found = {method: cells for method, cells in found.items() if cells}
    return {
        "methods": {method: _row(cells) for method, cells in found.items()},
        "ahead": {
            method: _ahead(ours, cells)
            for method, cells in found.items()
            if method not in (OURS, _LIKE) and (ours := found.get(_LIKE if method == "online" else OURS))
        },
    }


def _cells(wanted: Sequence[Cell]) -> list[dict[str, Any]]:
    return [read_cell(cell) for cell in wanted if (CELLS / f"{cell.name}.json").exists()]


def _row(cells: list[dict[str, Any]]) -> dict[str, Any]:
    accepted_N, tokens_N, domains = _by_prompt(cells)
    alone = [_rate(cell) for cell in cells]
    row: dict[str, Any] = {
        "acceptance": _gain(accepted_N, tokens_N, np.zeros_like(accepted_N), domains),
        "by_seed": alone,
        "tokens_per_target_call": float(np.mean([_omega(cell) for cell in cells])),
        "domains": {
            domain: float(accepted_N[domains == domain].sum() / tokens_N[domains == domain].sum())
            for domain in sorted(set(domains))
        },
    }
    for name in ("steps", "seconds", "tokens", "learning_rate", "peak_mib"):
        if name in cells[0]:
            row[name] = median(cell[name] for cell in cells)
    return row


def _ahead(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours less theirs, paired by prompt; over seeds, a prompt's mean."""
    one_N, tokens_N, domains = _by_prompt(ours)
    other_N, _, _ = _by_prompt(theirs)
    return _gain(one_N, tokens_N, other_N, domains)


def _gain(one_N: Any, tokens_N: Any, other_N: Any, domains: Any) -> dict[str, Any]:
    from pipeline.acceptance.intervals import ratio_gain

    return ratio_gain(one_N, tokens_N, other_N, tokens_N, list(domains), _CONFIDENCE).json()


def _by_prompt(cells: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    """Accepted mass of each prompt, mean over seeds; its tokens; its domain. All in the order of ids."""
    rows = [sorted(cell["prompts"]) for cell in cells]
    accepted_N = np.mean([[row[3] for row in own] for own in rows], axis=0)
    return accepted_N, np.array([float(row[2]) for row in rows[0]]), np.array([row[1] for row in rows[0]])


def _rate(cell: dict[str, Any]) -> float:
    return float(sum(row[3] for row in cell["prompts"]) / sum(row[2] for row in cell["prompts"]))


def _omega(cell: dict[str, Any]) -> float:
    return float(sum(row[2] for row in cell["prompts"]) / sum(row[4] for row in cell["prompts"]))


def section(figure: dict[str, Any]) -> Iterator[str]:
    """What BENCHMARKS.md says of it."""
    yield "## Distillation: acceptance bought\n"
    yield (
        f"Acceptance rate at temperature 1 on examination prompts of seven domains, after {figure['seconds']:.0f} s of training "
        "on 2 cores (mean of seeds; 95% intervals by prompt; differences paired by prompt). All methods: the same prompts and "
        "completions, 16 sequences a step, AdamW, 5% warm-up then cosine, bfloat16 autocast, no checkpointing of activations.\n"
    )
    for regime, found in figure["regimes"].items():
        yield from _table(regime, found)
    yield "Training tokens a second, turns taken within one run:\n"
    yield "| | tokens/s | of the bare torch loop | ours is so many times as fast |"
    yield "|---|---|---|---|"
    for name, row in figure["speed"].items():
        yield (
            f"| {name} | {row['tokens_per_second']:,.0f} | {row['of_the_bare_loop']:.2f} | {row['ours_over_it']:.2f} |"
        )
    yield f"\nGeneration of {NEW_TOKENS} tokens a prompt at temperature 1, fp32; ours stores the distributions as well:\n"
    yield "| batch | ours, tokens/s | model.generate | ratio |"
    yield "|---|---|---|---|"
    for batch, row in figure["generation"].items():
        yield f"| {batch} | {row['ours']:,.0f} | {row['model_generate']:,.0f} | {row['ratio']:.2f} |"


def _table(regime: str, found: dict[str, Any]) -> Iterator[str]:
    domains = list(found["methods"][STOCK]["domains"])
    yield f"### {regime}\n"
    yield f"| | steps | acceptance | by seed | ours ahead, points | {' | '.join(domains)} |"
    yield "|---|---|---|---|---|" + "---|" * len(domains)
    for method, row in found["methods"].items():
        alpha, ahead = row["acceptance"], found["ahead"].get(method)
        by_domain = [f"{row['domains'][name]:.3f}" for name in domains]
        points = (
            ""
            if ahead is None
            else f"{100 * ahead['value']:+.1f} [{100 * ahead['low']:+.1f}, {100 * ahead['high']:+.1f}]"
        )
        yield (
            f"| {method} | {row.get('steps', 0):.0f} | {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}] "
            f"| {', '.join(f'{value:.3f}' for value in row['by_seed'])} | {points} "
            f"| {' | '.join(by_domain)} |"
        )
    yield ""
