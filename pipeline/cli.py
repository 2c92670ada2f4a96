"""The `understudy` command: parse, call, and turn errors into one line and an exit code. No heavy imports."""

import errno
import logging
import signal
import sys
from collections.abc import Iterator

import typer

from pipeline.commands.check import check
from pipeline.commands.decode import decode
from pipeline.commands.doctor import doctor
from pipeline.commands.latency.explain import explain
from pipeline.commands.latency.fit import fit
from pipeline.commands.latency.options import RenamedOptions
from pipeline.commands.latency.predict import predict
from pipeline.commands.latency.schedule import schedule
from pipeline.commands.plan import plan
from pipeline.commands.probe import probe
from pipeline.commands.profile import profile
from pipeline.commands.rollback import rollback
from pipeline.commands.run import run
from pipeline.commands.show import show
from pipeline.commands.stage import stage
from pipeline.commands.sync import sync
from pipeline.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UnderstudyError
from pipeline.native.threads import limit_spinning

app = typer.Typer(
    name="understudy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Keeps the draft model of a speculative-decoding pair in step with its target.",
    epilog="Exit codes: 0 fine, 1 failure, 2 bad usage or config, 3 refused or regression found, 130 interrupted.",
)
for command in (plan, run, stage, show, probe, decode, profile, check, rollback, sync, doctor):
    app.command(cls=RenamedOptions)(command)
latency = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="When to speculate: what drafting costs and gains at a load."
)
for part in (fit, predict, schedule, explain):
    latency.command(cls=RenamedOptions)(part)
app.add_typer(latency, name="latency")

_DISK_ERRORS = {
    errno.ENOSPC: "no space left on the disk; free some and run again, nothing that was committed is lost",
    errno.EDQUOT: "the disk quota is used up; free some and run again, nothing that was committed is lost",
    errno.EROFS: "the file system is read-only; name a writable --store",
    errno.EACCES: "permission denied; mend the permissions, or name a --store that you may write to",
}


def main() -> None:
    """Entry point of the console script."""
    limit_spinning()  # before any command imports torch
    # Says at import which kernels it could not load, and at every int8 product that it casts.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # A scheduler ends a task with SIGTERM: the record should say so, as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(_main())


def _main() -> int:
    try:
        app()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            return _fail("interrupted; what was committed is kept, run again to go on", EXIT_INTERRUPTED)
        return int(end.code or 0)
    except UnderstudyError as error:
        return _fail(str(error), error.exit_code)
    except Exception as error:
        known = explain_disk_error(error)
        if known is None:
            raise
        return _fail(known, EXIT_FAILURE)
    return 0


def explain_disk_error(error: BaseException) -> str | None:
    """One line for a full or read-only disk, however deep in a library it was met; None for anything else."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return f"{cause.filename or 'the store'}: {_DISK_ERRORS[cause.errno]}"
        text = str(cause).lower()
        if "no space left" in text or "os error 28" in text or "disk is full" in text:
            return f"the store: {_DISK_ERRORS[errno.ENOSPC]}"
        if "read-only file system" in text or "os error 30" in text or "readonly database" in text:
            return f"the store: {_DISK_ERRORS[errno.EROFS]}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _fail(message: str, code: int) -> int:
    print(f"understudy: {message}", file=sys.stderr)
    return code
