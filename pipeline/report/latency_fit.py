"""What `understudy latency fit` prints: step costs with confidence intervals, and the errors of the fit."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.latency.costs.fitted import FittedCosts

_PIPE_WIDTH = 140
_MEANING = {
    "verify": "per step",
    "draft": "per draft token",
    "verify_each": "per request",
    "draft_each": "per request and draft token",
    "experts": "per step with all experts active",
    "prefill": "per prefill",
}


def print_costs(found: FittedCosts, measurements: int, path: Path | None) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    costs = found.costs
    table = Table()
    for title in ("cost", "ms", "95% interval", "unit"):
        table.add_column(title, justify="left" if title in ("cost", "unit") else "right")
    unknown = set() if found.max_gamma else {"draft", "draft_each"}  # plain decoding alone
    for name, one in costs.coefficients.items():
        if name in unknown:
            continue
        bounds = "unknown" if one.high == float("inf") else f"{1e3 * one.low:.3g} to {1e3 * one.high:.3g}"
        table.add_row(name, f"{1e3 * one.value:.4g}", bounds, _MEANING[name])
    console.print(table)
    say(f"{measurements} measurements; linear fit: MAPE {costs.mape:.1%}, R2 {costs.r2:.4f}")
    error = found.leave_one_out
    if error.linear:
        used = "piecewise" if found.piecewise else "linear"
        say(f"leave-one-out error: linear {error.linear:.1%}, piecewise {error.piecewise:.1%}; using {used}")
    if unknown:
        say("No measurement with a draft: these costs predict plain decoding only")
    if confounded := [name for name in costs.confounded if name not in unknown]:
        say(
            f"These measurements cannot separate {', '.join(confounded)}. Add other loads or draft lengths; predictions at the "
            "measured ones are valid"
        )
    if found.prefill:
        say(f"Each prefill blocks the batch for {1e3 * found.prefill:.3g} ms")
    else:
        say(
            "Prefill time is unknown, so predictions leave out TTFT. To fit it, add output lengths (column `tokens`) and a row "
            "with one request and its TTFT (column `ttft`). With chunked prefill, step times already include prefills"
        )
    if path is not None:
        say(f"written to {path}")
