"""The `understudy` command: parses, calls, and prints errors as one line with an exit code. No heavy imports."""

import importlib.metadata
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.commands import interruption, machine_errors, standard_streams
from pipeline.commands.canary import canary
from pipeline.commands.champion import history, promote, rollback, settle, verify
from pipeline.commands.champion_export import export
from pipeline.commands.check import check
from pipeline.commands.compare import compare
from pipeline.commands.dags import dags
from pipeline.commands.decode import decode
from pipeline.commands.doctor import doctor
from pipeline.commands.init import init
from pipeline.commands.latency.explain import explain
from pipeline.commands.latency.fit import fit
from pipeline.commands.latency.plan import plan as latency_plan
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


_AT_A_LOAD = "--costs costs.json --acceptance-rate 0.8 --output-tokens 200 --prompt-tokens 500"


class Named(NamedTuple):
    """A command with an example of its use: what follows `understudy`. `group`: the first of its two words."""

    command: Callable[..., None]
    example: str
    group: str = ""


# In the order in which the help and docs/commands.md show them: by what one wants to do.
AIMS: dict[str, tuple[Named, ...]] = {
    "Make a draft": (
        Named(init, "init --target ./target --draft ./draft --prompts prompts.jsonl --out my.yaml"),
        Named(plan, "plan my.yaml --measure"),
        Named(run, "run my.yaml"),
        Named(stage, "stage generate my.yaml --run nightly --shards 3/16"),
        Named(dags, "dags --out /opt/airflow/dags"),
    ),
    "Look at drafts and runs": (
        Named(runs, "runs"),
        Named(show, "show --html review.html"),
        Named(compare, "compare latest my-draft@champion"),
        Named(check, "check --draft my-draft --baseline baseline.json --junit check.xml"),
        Named(probe, "probe --target ./target --draft ./draft --prompts prompts.jsonl"),
        Named(decode, 'decode --target ./target --draft ./draft "def main():"'),
    ),
    "Serve a draft": (
        Named(promote, "champion promote my-draft", "champion"),
        Named(rollback, 'champion rollback my-draft --reason "slow answers"', "champion"),
        Named(history, "champion history my-draft", "champion"),
        Named(export, "champion export my-draft --engine vllm --out /srv/draft", "champion"),
        Named(settle, "champion settle my-draft", "champion"),
        Named(verify, "champion verify my-draft --wait 900", "champion"),
        Named(watch, "watch my-draft --once"),
        Named(canary, "canary my-draft --json"),
    ),
    "Predict latency": (
        Named(fit, "latency fit sweep.json --out costs.json", "latency"),
        Named(
            predict,
            f"latency predict {_AT_A_LOAD} --request-rate 1,4",
            "latency",
        ),
        Named(
            latency_plan,
            "latency plan --costs costs.json --request-rate 20 --p95 8s --output-tokens 40:160",
            "latency",
        ),
        Named(
            schedule,
            f"latency schedule {_AT_A_LOAD}",
            "latency",
        ),
        Named(
            explain,
            "latency explain --plain-ms 20 --verify-ms 24 --draft-ms 2 --gamma 5 --acceptance-rate 0.8",
            "latency",
        ),
        Named(profile, "profile --target ./target --draft ./draft"),
    ),
    "Keep the store and the machine in order": (
        Named(gc, "store gc --keep-runs 5 --delete", "store"),
        Named(sync, "store sync", "store"),
        Named(doctor, "doctor"),
    ),
}
GROUPS = {
    "champion": "Approve, roll back, verify, list or export the drafts in use.",
    "latency": "Predict latency, speedup and the best draft length by load.",
    "store": "Maintain the store of artifacts and runs.",
}


class _ByAim(TyperGroup):
    """The list of commands, by what one wants to do."""

    def format_commands(self, context: Any, formatter: Any) -> None:
        most = formatter.width - 6 - max(map(len, self.commands))
        for aim, listed in AIMS.items():
            names = dict.fromkeys(one.group or one.command.__name__ for one in listed)
            with formatter.section(aim):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(most)) for name in names])


class _Command(TyperCommand):
    """A command whose usage has no braces, which people typed, and whose example fits the width."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n  Example:\n")
        for line in shell_lines(str(self.epilog), formatter.width - 4):
            formatter.write(f"    {line}\n")


def shell_lines(call: str, width: int) -> list[str]:
    """A call in the shell, on lines that go on with a backslash where it is wider; options keep their values."""
    lines = [""]
    for word in re.findall(r"""(?:--[\w-]+ (?!-))?(?:[^\s"']|"[^"]*"|'[^']*')+""", call):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip() if len(lines) == 1 else f"{lines[-1]} {word}"
    return lines


def _typer(text: str, **options: Any) -> typer.Typer:
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text, **options)


app = _typer(
    "Train, examine, promote and watch drafts for speculative decoding: draft models, EAGLE-3 and Medusa heads.",
    name="understudy",
    cls=_ByAim,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 success, 1 failure, 2 bad usage or config, 3 refused or regression found, 130 interrupted.",
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of no command."""


_groups = {"": app, **{name: _typer(text) for name, text in GROUPS.items()}}
for _name, _group in _groups.items():
    if _name:
        app.add_typer(_group, name=_name)
for _one in (one for listed in AIMS.values() for one in listed):
    _called = led_by_first(_one.command) if _one.command in (run, stage) else in_first_alone(_one.command)
    _groups[_one.group].command(cls=_Command, epilog=f"understudy {_one.example}")(_called)


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
