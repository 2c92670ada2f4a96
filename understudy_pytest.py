"""pytest plugin of Understudy: holds a draft model to its baseline in a project's own tests.

    def test_draft(acceptance):
        assert acceptance.not_worse_than("baseline.json")

It calls the console command in a process of its own. Neither Understudy's packages nor torch are imported into the process of the
tests, so a project may have packages named `pipeline` or `stages`. Documentation: docs/ci.md.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_PASSED, _REGRESSION = 0, 3
_LAST_LINES = 20  # of a traceback


@dataclass(frozen=True)
class Result:
    """What `understudy check` found. It is true if the draft is not worse than the baseline."""

    passed: bool
    line: str  # as printed by the command: both acceptance rates, the difference and its interval
    figures: dict[str, Any] = field(default_factory=dict, repr=False)  # the content of --json

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.line


@dataclass(frozen=True)
class _Failed:
    """The command ended without a comparison."""

    line: str


class Acceptance:
    """The draft and the completions of the options, and the target of a draft that reads its hidden states. The command is called
    once for each baseline and margins."""

    def __init__(self, draft: str, completions: Path, root: Path, target: str | None = None) -> None:
        self._draft, self._completions, self._root, self._target = draft, completions, root, target
        self._found: dict[tuple[Path, float, float], Result | _Failed] = {}

    def __repr__(self) -> str:
        return "acceptance"

    def not_worse_than(
        self, baseline: str | os.PathLike[str], margin: float = 0.01, segment_margin: float = 0.02
    ) -> Result:
        """Compare the draft with a baseline file. A relative path starts at the directory of pytest's ini file.

        `margin` is the acceptance rate that the draft may lose; 0.01 is 1 point. `segment_margin` is what it may lose in each
        segment (thinking, tool calls, answer) that holds at least 10% of the tokens; with 1 segments are not judged. If the
        comparison is not possible, the test fails with the command's own line.
        """
        __tracebackhide__ = True
        asked = self._root / baseline, margin, segment_margin
        if asked not in self._found:
            self._found[asked] = self._check(*asked)
        found = self._found[asked]
        if isinstance(found, _Failed):
            pytest.fail(found.line, pytrace=False)
        print(found.line)  # pytest shows it with a failure, however long it is
        if note := found.figures.get("note"):
            print(note)
        return found

    def _check(self, baseline: Path, margin: float, segment_margin: float) -> Result | _Failed:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "check.json"
            options = {
                "--draft": self._draft,
                "--completions": self._completions,
                **({} if self._target is None else {"--target": self._target}),
                "--baseline": baseline,
                "--margin": margin,
                "--segment-margin": segment_margin,
                "--json": file,
            }
            line = [*_command(), "check", *(f"{name}={value}" for name, value in options.items())]
            ended = subprocess.run(
                line,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if ended.returncode in (_PASSED, _REGRESSION) and file.is_file():
                figures = json.loads(file.read_text(encoding="utf-8"))
                return Result(ended.returncode == _PASSED, figures["line"], figures)
        return _Failed(_reason(ended))


def _reason(ended: "subprocess.CompletedProcess[str]") -> str:
    """The command's own error line. If it has none, the end of what it wrote."""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(("understudy: ", "Error: ")):
            return f"understudy check: {line.partition(': ')[2]}"
    return "\n".join([f"understudy check ended with exit code {ended.returncode}", *lines[-_LAST_LINES:]])


def _command() -> list[str]:
    """The console script of this interpreter's environment; else the one on PATH; else the entry point beside this file. Each
    makes sure that it runs Understudy's own packages."""
    name = "understudy.exe" if os.name == "nt" else "understudy"
    script = Path(sys.executable).with_name(name)
    if script.is_file():
        return [str(script)]
    if found := shutil.which("understudy"):
        return [found]
    return [sys.executable, "-P", str(Path(__file__).resolve().with_name("understudy_cli.py"))]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("understudy", "draft models (Understudy)")
    group.addoption(
        "--understudy-draft", metavar="D", help="the draft that is checked, as `understudy check --draft` takes it"
    )
    group.addoption("--understudy-completions", metavar="DIR", help="the target's completions: a generate artifact")
    group.addoption(
        "--understudy-target",
        metavar="T",
        help="the target of the completions, for a draft that reads its hidden states",
    )
    parser.addini("understudy_target", "as --understudy-target; a path relative to this file", default="")
    parser.addini("understudy_draft", "as --understudy-draft; a path relative to this file", default="")
    parser.addini("understudy_completions", "as --understudy-completions; a path relative to this file", default="")


@pytest.fixture(scope="session")
def acceptance(pytestconfig: pytest.Config) -> Acceptance:
    """The draft's acceptance: `assert acceptance.not_worse_than("baseline.json")`."""
    root = pytestconfig.inipath.parent if pytestconfig.inipath else pytestconfig.rootpath
    draft, completions, target = (_setting(pytestconfig, root, name) for name in ("draft", "completions", "target"))
    for name, given in (("draft", draft), ("completions", completions)):
        if given is None:
            pytest.fail(
                f"no {name} given: use --understudy-{name}, or set understudy_{name} in pytest's ini file",
                pytrace=False,
            )
    return Acceptance(str(draft), Path(str(completions)), root, target)


def _setting(config: pytest.Config, root: Path, name: str) -> str | None:
    """Of the option, relative to the directory where pytest was started; else of the ini key, relative to the ini file; None for
    neither. What is no path there is left as it is: it may be a model of the hub, a run or a registered draft."""
    given, base = config.getoption(f"--understudy-{name}"), config.invocation_params.dir
    if not given:
        given, base = config.getini(f"understudy_{name}"), root
    if not given:
        return None
    path = base / Path(str(given)).expanduser()
    return str(path) if path.exists() or name == "completions" else str(given)
