"""`understudy doctor`: what this machine has and lacks. It changes nothing, and imports no heavy library but torch."""

import json
from dataclasses import asdict

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath
from pipeline.planning.doctor.checks import checks
from pipeline.report.doctor import render


def doctor(
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List what this machine has and lacks. Exits with 1 if something is missing that a run on a CPU needs."""
    found = checks(store)
    typer.echo(json.dumps([asdict(check) for check in found], indent=1) if as_json else render(found))
    if any(check.mark == "missing" for check in found):
        raise typer.Exit(1)
