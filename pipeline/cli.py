"""The `understudy` command: parses, calls, and prints errors as one line with an exit code. No heavy imports."""

import importlib.metadata
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from pipeline.commands import interruption, machine_errors, standard_streams
from pipeline.commands.canary import canary
from pipeline.commands.champion import export, history, promote, rollback, settle, verify
from pipeline.commands.check import check
from pipeline.commands.compare import compare
from pipeline.commands.dags import dags
from pipeline.commands.decode import decode
from pipeline.commands.doctor import doctor
from pipeline.commands.init import init
from pipeline.commands.latency.explain import explain
from pipeline.commands.latency.fit import fit
from pipeline.commands.latency.predict import predict
from pipeline.commands.latency.schedule import schedule
from pipeline.commands.launched import in_first_alone, led_by_first
from pipeline.commands.plan import plan
from pipeline.commands.probe import probe
from pipeline.commands.profile import profile
from pipeline.commands.run import run
from pipeline.commands.runs import runs
from pipeline.commands.show import show
from pipeline.commands.stage import stage
from pipeline.commands.store import gc, sync
from pipeline.commands.watch import watch
from pipeline.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UnderstudyError
from pipeline.native.threads import limit_spinning
from pipeline.progress import Progress, say


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"understudy {importlib.metadata.version('understudy')}")
        raise typer.Exit


app = typer.Typer(
    name="understudy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Retrain, measure and promote the draft model of a speculative-decoding pair.",
    epilog="Exit codes: 0 success, 1 failure, 2 bad usage or config, 3 refused or regression found, 130 interrupted.",
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of no command."""


for command in (
    init,
    plan,
    run,
    stage,
    runs,
    show,
    compare,
    probe,
    decode,
    profile,
    check,
    watch,
    canary,
    dags,
    doctor,
):
    app.command()(led_by_first(command) if command in (run, stage) else in_first_alone(command))


def _group(name: str, text: str, commands: Iterable[Callable[..., None]]) -> None:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    for command in commands:
        group.command()(in_first_alone(command))
    app.add_typer(group, name=name)


_group("latency", "Predict latency, speedup and the best draft length by load.", (fit, predict, schedule, explain))
_group(
    "champion",
    "Approve, roll back, verify, list or export the drafts in use.",
    (promote, rollback, settle, verify, history, export),
)
_group("store", "Maintain the store of artifacts and runs.", (gc, sync))


def main() -> None:
    """Entry point of the console script."""
    standard_streams.protect()
    standard_streams.ignore_impossible_sizes()
    limit_spinning()  # before any command imports torch
    # It warns at import about kernels that it cannot load, and at every int8 product about a cast.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    interruption.listen()
    sys.exit(_main())


def _main() -> int:
    try:
        os.getcwd()  # without one, MKL ends the process with a line of its own when torch is first used
    except FileNotFoundError:
        return _fail(EXIT_USAGE, "the current directory was deleted; change to another one and run again")
    try:
        app()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            return _fail(EXIT_INTERRUPTED, "interrupted; finished artifacts are kept, run again to continue")
        return int(end.code or 0)
    except UnderstudyError as error:
        return _fail(error.exit_code, *str(error).split("\n"))
    except Exception as error:
        known = machine_errors.explain(error)
        if known is None:
            for line in traceback.format_exc().splitlines():  # it may quote what a server said
                Progress().line(line)
            return EXIT_FAILURE
        return _fail(EXIT_FAILURE, known)
    return 0


def _fail(code: int, first: str, *others: str) -> int:
    for line in (f"understudy: {first}", *others):
        Progress().line(line)
    return code
