"""`understudy doctor`: what this machine has and lacks. It changes nothing, and imports no heavy library but torch."""

from dataclasses import asdict

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath
from pipeline.escaping.terminal import printable
from pipeline.planning.doctor.check import Check
from pipeline.planning.doctor.checks import checks
from pipeline.progress import say_json


def doctor(
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List what this machine has and lacks. Exits with 1 if something is missing that a run on a CPU needs."""
    results = checks(store)
    if as_json:
        say_json([asdict(check) for check in results])
    else:
        print_checks(results)
    if any(check.mark == "missing" for check in results):
        raise typer.Exit(1)


def print_checks(results: list[Check]) -> None:
    """Print the checks to stdout."""
    typer.echo(render(results))


def render(results: list[Check]) -> str:
    """Aligned columns; what to do stands under its line; the result is the last line."""
    width = max(len(check.name) for check in results)
    colors = {"ok": typer.colors.GREEN, "missing": typer.colors.RED, "note": typer.colors.YELLOW}
    lines = []
    for check in results:
        mark = typer.style(f"{check.mark:<7}", fg=colors[check.mark])
        lines.append(f"{mark}  {check.name:<{width}}  {printable(check.found)}")
        if check.remedy:
            lines.append(f"{'':9}{'':{width}}  -> {printable(check.remedy)}")
    missing = [check.name for check in results if check.mark == "missing"]
    lines.append(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing that a run on a CPU needs")
    return "\n".join(lines)
