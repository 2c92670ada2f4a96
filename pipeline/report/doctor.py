"""What `understudy doctor` prints: a line for each check, with the remedy under it, and the result."""

import typer

from pipeline.escaping.terminal import printable
from pipeline.planning.doctor.check import Check


def print_checks(found: list[Check]) -> None:
    """To stdout."""
    typer.echo(render(found))


def render(found: list[Check]) -> str:
    """Aligned columns; what to do stands under its line; the result is the last line."""
    width = max(len(check.name) for check in found)
    colors = {"ok": typer.colors.GREEN, "missing": typer.colors.RED, "note": typer.colors.YELLOW}
    lines = []
    for check in found:
        mark = typer.style(f"{check.mark:<7}", fg=colors[check.mark])
        lines.append(f"{mark}  {check.name:<{width}}  {printable(check.found)}")
        if check.remedy:
            lines.append(f"{'':9}{'':{width}}  -> {printable(check.remedy)}")
    missing = [check.name for check in found if check.mark == "missing"]
    lines.append(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing that a run on a CPU needs")
    return "\n".join(lines)
