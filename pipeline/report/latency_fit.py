"""What `understudy latency fit` prints: costs with their intervals, and how far they can be trusted."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.latency.costs.fitted import FittedCosts

_PIPE_WIDTH = 140
_MEANING = {
    "verify": "any step",
    "draft": "each draft token of it",
    "verify_each": "each request in it",
    "draft_each": "each draft token of each request",
    "experts": "reading every expert's weights",
    "prefill": "each prompt that it meets",
}


def print_costs(found: FittedCosts, measurements: int, path: Path | None) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    costs = found.costs
    table = Table()
    for title in ("cost", "milliseconds", "95% interval", "of"):
        table.add_column(title, justify="left" if title in ("cost", "of") else "right")
    unknown = set() if found.max_gamma else {"draft", "draft_each"}  # plain decoding alone
    for name, one in costs.coefficients.items():
        if name in unknown:
            continue
        bounds = "unknown" if one.high == float("inf") else f"{1e3 * one.low:.3g} to {1e3 * one.high:.3g}"
        table.add_row(name, f"{1e3 * one.value:.4g}", bounds, _MEANING[name])
    console.print(table)
    say(f"{measurements} measurements; the line is {100 * costs.mape:.1f}% off on the average, R2 {costs.r2:.4f}")
    leave_one_out = found.leave_one_out
    if found.piecewise:
        say(
            f"A line does not fit: each measurement predicted from the others, it is {100 * leave_one_out.linear:.1f}% off, and "
            f"{100 * leave_one_out.piecewise:.1f}% with bends, which predictions therefore use"
        )
    if unknown:
        say("Nothing was measured with a draft: these costs predict plain decoding alone")
    if confounded := [name for name in costs.confounded if name not in unknown]:
        say(
            f"These measurements cannot tell {', '.join(confounded)} apart; other loads or draft lengths would, and at "
            "those that were measured predictions hold all the same"
        )
    if found.prefill:
        say(f"A prompt holds everybody up for {1e3 * found.prefill:.3g} ms")
    else:
        say(
            "Predictions leave the wait for a first token out. Where nothing says what prefills take, answers' lengths (a column "
            "`tokens`) and a row of one request with its first token (`ttft`) do; an engine that slices prefills into its steps "
            "has them in its steps already"
        )
    if path is not None:
        say(f"written to {path}")
