"""docs/tutorial.md: its commands exist, and the comparison with what they print can fail. Nothing is run."""

import re
import shlex

import pytest
from typer.main import get_command

from pipeline.cli import app
from tests import commands_page
from tests.tutorial_page import HOME, PAGE, missing, steps

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="runs in a checkout")

ORDER = (
    "doctor",
    "probe",
    "init",
    "plan",
    "run",
    "show",
    "champion history",
    "watch",
    "run",
    "dags",
    "champion rollback",
    "champion history",
)
PRINTED = "run 20261126-222824-target-cdef8d-fce4 in /tmp/x/.understudy\npair: resolve\npair: done in 17 s\n"


def _called() -> list[list[str]]:
    """The words of each call of `understudy`, without what the shell does with its output."""
    commands = [re.sub(r"\$\(.*\)", "2026-11-24", one.command) for one in steps(PAGE.read_text(encoding="utf-8"))]
    return [
        shlex.split(call) for command in commands for call in re.findall(r"(?:^|; |do )understudy ([^>|&;#]+)", command)
    ]


def test_the_page_goes_through_the_whole_loop() -> None:
    """Its commands stand in this order, others between them."""
    names = iter([" ".join(words[: 1 + (words[0] == "champion")]) for words in _called()])
    assert [one for one in ORDER if one not in names] == []


def test_every_command_of_the_page_is_understood() -> None:
    """With all its options."""
    for words in _called():
        command = get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        commands_page.require_understood(command, words)


def test_every_file_of_the_repository_that_the_page_names_is_there() -> None:
    """Scripts and environments are named relative to the checkout."""
    named = re.findall(r"docs/[\w/.-]+\.py", PAGE.read_text(encoding="utf-8"))
    root = PAGE.parents[1]
    assert (True, []) == (bool(named), [one for one in named if not (root / one).exists()])


def test_an_option_that_is_not_there_is_found() -> None:
    """Of the words of a command, however they are abbreviated."""
    with pytest.raises(Exception, match="No such option: --htm"):
        commands_page.require_understood(get_command(app).commands["show"], ["--htm", "page.html"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (["run 20250101-000000-target-0123ab-0a0a in " + HOME + "/.understudy", "..."], ""),
        (["...", "pair: done in 3 s"], ""),
        (["...", "pair: done in 3 s", "..."], ""),
        ([], ""),
        (["pair: done in 3 s"], "pair: done in 3 s"),  # what is before it is not shown
        (["...", "pair: finished in 3 s", "..."], "pair: finished in 3 s"),
        (["...", "pair: done in 3 s", "...", "pair: resolve", "..."], "pair: resolve"),  # another order
    ],
)
def test_what_is_shown_is_compared(shown: list[str], wrong: str) -> None:
    """Figures and names made of hashes may differ, words and order may not."""
    assert wrong == missing(shown, PRINTED, "/tmp/x")


def test_what_is_left_out_is_marked() -> None:
    """Output that goes on needs `...`."""
    assert "pair: done" in missing(["...", "pair: resolve"], PRINTED, "/tmp/x")
