"""What `understudy plan` prints, and a learning curve in a line."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # whoever shows a run should not wait for what reads prompts
    from pipeline.planning.forecast import Forecast
    from pipeline.planning.trial_runs import Cost, Measured

_PIPE_WIDTH = 110


def print_forecast(found: "Forecast", curve: Mapping[str, Any] | None) -> None:
    """To stdout. What is asked is an upper bound but for the chance of the splits."""
    splits = ", ".join(f"{count:,} {split}" for split, count in found.prompts.items())
    print(f"corpus: {found.rows:,} rows, so about {splits} prompts, less what is rejected or there twice")
    for asked in found.generate:
        print(
            f"{asked.job}: up to {asked.completions:,} completions, {asked.tokens:,} tokens of the target, "
            f"{asked.stored_bytes / 1e6:,.1f} MB at {found.bytes_per_token} bytes a token"
        )
    if found.first_turns_only:
        print("chats asked turn by turn are counted with their first question; those that go on ask more")
    print(f"distill: {found.training_rows:,} rows of completions in all steps together")
    if curve is not None:
        print(curve_text(curve))


def print_measured(found: "Measured") -> None:
    """To stdout: what two small runs say of the whole."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    table = Table()
    table.add_column("job")
    for title in ("time", "disk", "memory", *(["GPU memory"] if found.total.gpu_bytes else [])):
        table.add_column(title, justify="right")
    for name, cost in found.jobs.items():
        table.add_row(name, *_cells(cost, bool(found.total.gpu_bytes)))
    table.add_section()
    table.add_row("all together", *_cells(found.total, bool(found.total.gpu_bytes)))
    console.print(table)
    forms = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in found.serving_bytes.items())
    requests = "request" if found.batch == 1 else "requests"
    print(
        f"serving (target and draft as stored, caches of {found.batch} {requests} of {found.context:,} tokens): {forms}"
    )


def _cells(cost: "Cost", gpu: bool) -> list[str]:
    whole = round(cost.seconds)
    time = (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )
    sizes = [cost.stored_bytes, cost.memory_bytes, *([cost.gpu_bytes] if gpu else [])]
    return [time, *(f"{size / 1e6:,.1f} MB" for size in sizes)]


def curve_text(curve: Mapping[str, Any]) -> str:
    """On dev prompts; the reader decides whether the target is worth asking again."""
    points = ", ".join(f"{point['dev_acceptance']:.3f} from {point['completions']:,}" for point in curve["points"])
    text = f"learning curve, acceptance on dev by completions: {points}"
    gain = curve["next_doubling"]
    return text if gain is None else f"{text}; twice as many would add about {100 * gain:.1f} points"
