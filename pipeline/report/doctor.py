"""What `understudy doctor` prints: a line for each check, with the remedy under it, and the result."""

import typer

from pipeline.planning.doctor.check import Check


def render(found: list[Check]) -> str:
    """Aligned columns; what to do stands under its line; the result is the last line."""
    width = max(len(check.name) for check in found)
    colors = {"ok": typer.colors.GREEN, "missing": typer.colors.RED, "note": typer.colors.YELLOW}
    lines = []
    for check in found:
        mark = typer.style(f"{check.mark:<7}", fg=colors[check.mark])
        lines.append(f"{mark}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':9}{'':{width}}  -> {check.remedy}")
    missing = [check.name for check in found if check.mark == "missing"]
    lines.append(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing that a run on a CPU needs")
    return "\n".join(lines)
