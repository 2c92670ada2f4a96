"""The documents keep up with the code."""

from pathlib import Path

import pytest

from pipeline.cli import app
from pipeline.report.configuration import render

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="runs in a checkout")


def test_every_config_key_is_documented() -> None:
    """docs/configuration.md is what `make docs` would write."""
    assert render() == (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_readme() -> None:
    """A command that the README does not name does not exist for a stranger."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [str(command.callback.__name__) for command in app.registered_commands if command.callback]
    assert [] == [
        name for name in names if f"`understudy {name} " not in readme and f"`understudy {name}`" not in readme
    ]


def test_every_make_target_says_what_it_is() -> None:
    """`make help` lists a target only if it has a sentence."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = makefile.split(".PHONY:")[1].splitlines()[0].split()
    assert [] == [
        target
        for target in phony
        if f"\n{target}:" in makefile and "##" not in makefile.split(f"\n{target}:")[1].splitlines()[0]
    ]
