"""`understudy doctor`: what this machine has and lacks. It changes nothing, and imports no heavy library but torch."""

from dataclasses import asdict

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath
from pipeline.planning.doctor.checks import checks
from pipeline.progress import say_json
from pipeline.report.doctor import print_checks


def doctor(
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List what this machine has and lacks. Exits with 1 if something is missing that a run on a CPU needs."""
    found = checks(store)
    if as_json:
        say_json([asdict(check) for check in found])
    else:
        print_checks(found)
    if any(check.mark == "missing" for check in found):
        raise typer.Exit(1)
