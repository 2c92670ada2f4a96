"""The pytest plugin, with a fake console command that writes down how it was called."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import understudy_pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[2]
LINE = "regression: acceptance rate 0.5012, baseline 0.7123: -21.11 points [-22.00, -20.00] over 500 prompts, margin 1 point"
_FAKE = """#!{python}
import json, pathlib, sys
place = pathlib.Path(__file__).parent
arguments = dict(one.split("=", 1) for one in sys.argv[2:])
with (place / "calls").open("a") as calls:
    calls.write(json.dumps([sys.argv[1], str(pathlib.Path.cwd()), arguments]) + "\\n")
answer = json.loads((place / "answer").read_text())
if answer["figures"]:
    pathlib.Path(arguments["--json"]).write_text(json.dumps(answer["figures"]))
print(answer["err"], file=sys.stderr)
sys.exit(answer["code"])
"""
_TEST = "def test_draft(acceptance):\n    assert acceptance.not_worse_than('baseline.json')\n"
_OPTIONS = ("--understudy-draft", "draft", "--understudy-completions", "completions")


class Fake:
    """The console command beside the interpreter."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        (place / "understudy").write_text(_FAKE.format(python=sys.executable))
        (place / "understudy").chmod(0o755)
        self.answers(0, "no regression: acceptance rate 0.7")

    def answers(self, code: int, line: str | None, err: str = "", note: str | None = None) -> None:
        figures = {"line": line, "note": note} if line else None
        (self.place / "answer").write_text(json.dumps({"code": code, "figures": figures, "err": err}))

    @property
    def calls(self) -> list[Any]:
        path = self.place / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # of an installed Understudy; -p names the plugin
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p understudy_pytest -p no:cacheprovider")
    found = Fake(pytester.path / "bin")
    monkeypatch.setattr(sys, "executable", str(found.place / "python"))
    pytester.makepyfile(_TEST)
    return found


def test_a_draft_that_is_not_worse_passes(pytester: pytest.Pytester, fake: Fake) -> None:
    """The command is called once, in the directory of the ini file, with whole paths and the margin."""
    (pytester.path / "draft").mkdir()
    pytester.runpytest(*_OPTIONS).assert_outcomes(passed=1)

    ((command, cwd, arguments),) = fake.calls
    assert ("check", str(pytester.path)) == (command, cwd)
    assert {
        "--draft": str(pytester.path / "draft"),
        "--completions": str(pytester.path / "completions"),
        "--baseline": str(pytester.path / "baseline.json"),
        "--margin": "0.01",
        "--segment-margin": "0.02",
        "--json": arguments["--json"],
    } == arguments
    assert not Path(arguments["--json"]).exists()


def test_a_regression_shows_the_printed_line(pytester: pytest.Pytester, fake: Fake) -> None:
    """In the message of the assertion, whole; the note about the machine stands in the captured output."""
    fake.answers(3, LINE, f"understudy: {LINE}", "note: the baseline was measured on cuda")
    ended = pytester.runpytest(*_OPTIONS)

    ended.assert_outcomes(failed=1)
    assert 1 == sum(line.startswith("E ") and line.endswith(f" assert {LINE}") for line in ended.outlines)
    assert {LINE, "note: the baseline was measured on cuda"} <= set(ended.outlines)


def test_a_comparison_is_made_once_a_session(pytester: pytest.Pytester, fake: Fake) -> None:
    """The same baseline and margin in several tests and files is one call; another margin is another."""
    pytester.makepyfile(
        test_more="def test_again(acceptance):\n"
        "    assert acceptance.not_worse_than('baseline.json', margin=0.01)\n"
        "    assert acceptance.not_worse_than('baseline.json', margin=0.02).passed\n"
        "    assert acceptance.not_worse_than('baseline.json', margin=0.02, segment_margin=1).passed\n"
    )
    pytester.runpytest(*_OPTIONS).assert_outcomes(passed=2)

    asked = [(arguments["--margin"], arguments["--segment-margin"]) for _, _, arguments in fake.calls]
    assert [("0.01", "0.02"), ("0.02", "0.02"), ("0.02", "1")] == asked


@pytest.mark.parametrize(
    ("code", "err", "shown"),
    [
        (2, "understudy: --baseline b: no such file", "understudy check: --baseline b: no such file"),
        (1, "WARNING: x\nunderstudy: shard was altered", "understudy check: shard was altered"),
        (
            2,
            "Usage: understudy check\n\nError: Invalid value for '--margin'",
            "understudy check: Invalid value for '--margin'",
        ),
        (1, "Traceback (most recent call last):\nKeyError: 'x'", "KeyError: 'x'"),
    ],
)
def test_an_error_of_the_command_is_the_message(
    pytester: pytest.Pytester, fake: Fake, code: int, err: str, shown: str
) -> None:
    """Its own line, without a traceback of the plugin; it is not asked again."""
    pytester.makepyfile(_TEST + _TEST.replace("test_draft", "test_again"))
    fake.answers(code, None, err)
    ended = pytester.runpytest(*_OPTIONS)

    ended.assert_outcomes(failed=2)
    assert shown in ended.outlines
    assert "understudy_pytest.py" not in ended.stdout.str()
    assert 1 == len(fake.calls)


@pytest.mark.parametrize("missing", ["draft", "completions"])
def test_a_missing_option_is_named(pytester: pytest.Pytester, fake: Fake, missing: str) -> None:
    """With the ini key that also sets it; no command is called."""
    options = [f"--understudy-{name}=x" for name in ("draft", "completions") if name != missing]
    ended = pytester.runpytest(*options)

    ended.assert_outcomes(errors=1)
    expected = f"no {missing} given: use --understudy-{missing}, or set understudy_{missing} in pytest's ini file"
    assert expected in ended.outlines
    assert [] == fake.calls


def test_paths_of_the_ini_file_are_relative_to_it(
    pytester: pytest.Pytester, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is the baseline, from whatever directory pytest is started; a name that is not a path there is left as it is."""
    pytester.makeini("[pytest]\nunderstudy_draft = org/name@v1\nunderstudy_completions = data/completions\n")
    (pytester.path / "elsewhere").mkdir()
    monkeypatch.chdir(pytester.path / "elsewhere")
    pytester.runpytest(pytester.path).assert_outcomes(passed=1)
    (Path.cwd() / "mine").mkdir()
    pytester.runpytest(pytester.path, "--understudy-draft=mine").assert_outcomes(passed=1)

    data, base = str(pytester.path / "data" / "completions"), str(pytester.path / "baseline.json")
    found = [
        [arguments[f"--{name}"] for name in ("draft", "completions", "baseline")] for _, _, arguments in fake.calls
    ]
    assert [["org/name@v1", data, base], [str(Path.cwd() / "mine"), data, base]] == found


def test_where_the_command_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the interpreter, else on PATH, else the entry point beside the plugin, which needs no search path."""
    for name in ("bin", "path"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "understudy").write_text("")
        (tmp_path / name / "understudy").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert [str(tmp_path / "bin" / "understudy")] == understudy_pytest._command()

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert [str(tmp_path / "path" / "understudy")] == understudy_pytest._command()

    monkeypatch.setenv("PATH", "")
    entry = Path(understudy_pytest.__file__).with_name("understudy_cli.py")
    assert [sys.executable, "-P", str(entry)] == understudy_pytest._command()
    assert entry.is_file()


def test_a_project_with_packages_of_our_names_keeps_them(tmp_path: Path) -> None:
    """The tests import their own `pipeline`; no package of Understudy, no numpy and no torch comes with the plugin."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own(acceptance):\n"
        "    assert not {'numpy', 'torch', 'pipeline', 'stages', 'understudy_cli'} & set(sys.modules)\n"
        "    import pipeline\n"
        "    assert pipeline.OWN\n"
    )
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": "."}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "understudy_pytest", *_OPTIONS]
    ended = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout


def test_the_plugin_imports_the_standard_library_and_pytest() -> None:
    """It is loaded into every pytest process of an environment that has Understudy."""
    tree = ast.parse(Path(understudy_pytest.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {"pytest"} == {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout")
def test_pytest_finds_the_plugin_of_an_installed_package() -> None:
    """By its entry point; the modules beside the packages are listed for the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert {"understudy": "understudy_pytest"} == project["project"]["entry-points"]["pytest11"]
    assert {path.stem for path in ROOT.glob("*.py")} == set(project["tool"]["setuptools"]["py-modules"])
