"""The documents keep up with the code."""

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from pipeline.cli import AIMS, Named, app
from tests import commands_page, configuration_page, modules_page
from tests.architectures import FAMILIES
from tests.benchmarks import architectures
from tests.benchmarks.figures import RESULTS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="runs in a checkout")


def test_every_config_key_is_documented() -> None:
    """docs/configuration.md is what `make docs` would write."""
    assert configuration_page.page() == (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_every_architecture_that_was_tried_is_documented() -> None:
    """docs/architectures.md is what the benchmark would write from its stored figures."""
    figure = json.loads((RESULTS / "architectures.json").read_text(encoding="utf-8"))["figure"]
    assert architectures.page(figure) == (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    assert set(FAMILIES) == {row["family"] for row in figure["families"]}


@pytest.mark.skipif(
    f"typer=={metadata.version('typer')}" not in (ROOT / "constraints.txt").read_text().splitlines(),
    reason="each version of typer writes help in another way",
)
def test_every_command_is_documented() -> None:
    """docs/commands.md is what `make docs` would write."""
    assert commands_page.page() == (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def test_every_module_is_documented() -> None:
    """docs/modules.md is what `make docs` would write."""
    assert modules_page.page() == (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("named", [one for listed in AIMS.values() for one in listed], ids=commands_page.name_of)
def test_the_example_of_a_command_is_understood(named: Named) -> None:
    """It is in the help of the command, and all its options exist. Nothing is run."""
    command, words = commands_page.command_of(named), commands_page.name_of(named).split()
    given = shlex.split(named.example)
    assert given[: len(words)] == words
    commands_page.require_understood(command, given[len(words) :])
    helped = CliRunner().invoke(app, [*words, "--help"]).output.replace("\\\n", "")
    assert named.example in " ".join(helped.split())


@pytest.mark.parametrize("group", [None, *(part.name for part in app.registered_groups)])
def test_every_summary_fits_into_a_line(group: str | None) -> None:
    """The list of commands shows each summary whole in a terminal of 80 columns."""
    shown = CliRunner().invoke(app, [*([group] if group else []), "--help"], env={"COLUMNS": "80"}).output
    assert [] == [line for line in shown.splitlines()[1:] if line.endswith(("...", "…"))]


def _command(name: str) -> Any:
    return get_command(app).commands[name]  # type: ignore[attr-defined]


def test_every_option_of_the_check_is_documented() -> None:
    """In docs/ci.md, with those of the pytest plugin."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    options = [option for one in _command("check").params for option in one.opts if option.startswith("--")]
    options += re.findall(r"\"(--understudy-[a-z]+)\"", (ROOT / "understudy_pytest.py").read_text(encoding="utf-8"))

    assert {"--junit", "--understudy-draft"} <= set(options)
    assert [] == [option for option in options if f"`{option}" not in page and f"[{option}" not in page]


def test_the_example_workflow_is_safe_to_copy() -> None:
    """It is YAML with no permission but to read, actions pinned by commit, and no expression in a script."""
    text = (ROOT / "docs" / "examples" / "draft-regression.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    (job,) = workflow["jobs"].values()

    assert ({}, {"contents": "read"}) == (workflow["permissions"], job["permissions"])
    assert [] == [step for step in job["steps"] if not re.search("@[0-9a-f]{40}$", step.get("uses", f"@{'0' * 40}"))]
    assert [] == [step for step in job["steps"] if "${{" in step.get("run", "")]
    assert [False] == [
        step["with"]["persist-credentials"] for step in job["steps"] if "checkout" in step.get("uses", "")
    ]


def test_every_link_of_the_documents_leads_somewhere() -> None:
    """To a file that is there, and to a heading of it; links to other sites are not followed."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    dead = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)", page.read_text(encoding="utf-8")):
            path, _, heading = link.partition("#")
            file = page.parent / path if path else page
            if "://" not in link and (not file.exists() or (heading and heading not in _headings(file))):
                dead.append((page.name, link))
    assert [] == dead


def _headings(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_make_target_says_what_it_is() -> None:
    """`make help` lists a target only if it has a sentence."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = makefile.split(".PHONY:")[1].splitlines()[0].split()
    assert [] == [
        target
        for target in phony
        if f"\n{target}:" in makefile and "##" not in makefile.split(f"\n{target}:")[1].splitlines()[0]
    ]


def test_the_quickstart_installs_the_package_alone_and_shows_it() -> None:
    """Tools of the tests come with `make test`; pip is not silent, and what it downloads is said before."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = {
        rule.partition(":")[0]: rule.partition(":")[2] for rule in re.findall(r"^[^\s#].*(?:\n\t.*)*", makefile, re.M)
    }
    alone, tools = rules["$(VENV)/.installed"], rules["$(VENV)/.developed"]

    assert "$(VENV)/.installed" == rules["quickstart"].split()[0]
    assert "$(VENV)/.developed" == rules["test"].split()[0]
    assert "[dev]" in tools
    assert [] == re.findall(r"\[dev\]|--quiet|--progress-bar off", alone)
    assert re.search(r"echo .*GB to download.* GB on disk", alone)


def test_the_kinds_of_drafts_are_those_of_the_table() -> None:
    """docs/drafts.md has a row for each kind, with what `drafts/kinds.py` says of it."""
    from pipeline.drafts.kinds import KINDS

    rows = [
        f"| `{kind.name}` | {kind.summary} | {_yes(kind.has_weights)} | {_yes(not kind.by_token)} | "
        f"{_yes(kind.depends_on_gamma)} | {kind.memory} |"
        for kind in KINDS.values()
    ]
    text = (ROOT / "docs" / "drafts.md").read_text(encoding="utf-8")
    assert rows == [line for line in text.splitlines() if line.startswith("| `")]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
