"""docs/commands.md, made from the commands themselves: `python -m tests.commands_page`, which `make docs` calls."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from pipeline.cli import AIMS, Named, app
from pipeline.progress import say_block

_HEAD = """# Commands

`understudy COMMAND --help` prints what stands here; this page is made from it by `make docs`. Commands that take a draft take
every form of [naming.md](naming.md). Exit codes: 0 success, 1 failure, 2 bad usage or config, 3 refused or regression found, 130
interrupted.
"""


def command_of(named: Named) -> Any:
    """The command as click has it."""
    name, commands = named.command.__name__, get_command(app).commands  # type: ignore[attr-defined]
    return commands[named.group].commands[name] if named.group else commands[name]


def name_of(named: Named) -> str:
    return f"{named.group} {named.command.__name__}".strip()


def require_understood(command: Any, words: list[str]) -> None:
    """click's NoSuchOption or another of its errors for `words` that the command does not take. Nothing is run, and no value is
    looked at. (`make_context` with `resilient_parsing` says nothing of unknown options.)"""
    command.make_parser(typer.Context(command, info_name="understudy")).parse_args(list(words))


def page() -> str:
    """The whole page."""
    return _HEAD + "\n".join(line for aim, listed in AIMS.items() for line in _aim(aim, listed)) + "\n"


def _aim(aim: str, listed: tuple[Named, ...]) -> Iterator[str]:
    yield f"\n## {aim}\n\n| command | what it does |\n|---|---|"
    for named in listed:
        name = name_of(named)
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {command_of(named).get_short_help_str(200).rstrip('.')} |"
    for named in listed:
        yield from _command(named)


def _command(named: Named) -> Iterator[str]:
    command, name = command_of(named), name_of(named)
    context = typer.Context(command, info_name=f"understudy {name}")
    yield f"\n### {name}\n"
    paragraphs = inspect.cleandoc(command.help).split("\n\n")
    yield "\n\n".join(" ".join(one.split()) for one in paragraphs)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f"\n    {usage}\n    understudy {named.example}\n"
    rows = [row for row in (one.get_help_record(context) for one in command.params) if row is not None]
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield from (f"| `{_escaped(name)}` | {_escaped(said)} |" for name, said in rows)


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    say_block(page())
