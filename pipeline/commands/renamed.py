"""Commands and options that have new names: the old ones are refused, and the error gives the new name."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from pipeline.errors import UsageError

COMMANDS = {"rollback": "champion rollback", "sync": "store sync"}
_RUN = "an argument: understudy {command} RUN"
OPTIONS = {  # by command: old option to new option
    "show": {"--run": _RUN},
    "check": {"--run": _RUN},
    "profile": {"--batches": "--batch-sizes", "--contexts": "--context-lengths", "--prompts": "--prompt-lengths"},
    "predict": {
        "--times": "--costs",
        "--tokens": "--output-tokens",
        "--batch-cap": "--max-num-seqs",
        "--rate": "--request-rate",
    },
    "schedule": {"--times": "--costs", "--tokens": "--output-tokens", "--batch-cap": "--max-num-seqs"},
    "explain": {"--acceptance": "--acceptance-rate"},
}


class Command(TyperCommand):
    """A command that knows the old names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        renamed = OPTIONS.get(ctx.info_name, {})
        for name in (argument.partition("=")[0] for argument in args):
            if name in renamed:
                raise UsageError(f"{name} is now {renamed[name].format(command=ctx.info_name)}")
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The top-level commands, and their old names."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            raise UsageError(f"{args[0]} is now: understudy {COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)
