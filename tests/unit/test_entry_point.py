"""The `understudy` command in a directory that has packages `pipeline` and `stages` of its own, which PYTHONPATH puts first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.planning import trial_runs

_SCRIPT = Path(sys.executable).with_name("understudy")
_INSTALLED = _SCRIPT.exists() and "understudy_cli" in _SCRIPT.read_text()
COMMANDS = {
    "console script": [str(_SCRIPT)] if _INSTALLED else [sys.executable, "-c", "import understudy_cli as u; u.main()"],
    "python -m": [sys.executable, "-m", "understudy_cli"],
    "process of plan --measure": [sys.executable, "-P", str(trial_runs._UNDERSTUDY)],
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory with foreign packages that end the process when they are imported."""
    for name in ("pipeline", "stages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the foreign {name}')\n")
    return tmp_path


def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": "."}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_foreign_packages_of_our_names_are_not_imported(elsewhere: Path, name: str) -> None:
    """Every way to start the command reads a store with our own modules."""
    ended = _run([*COMMANDS[name], "runs", "--store", "s"], elsewhere)

    assert (0, "") == (ended.returncode, ended.stderr)
    assert "s: no runs here yet" in ended.stdout


def test_the_stages_are_ours_too(elsewhere: Path) -> None:
    """A stage that is imported by name after the start comes from the folder beside the entry point."""
    code = (
        "import sys, understudy_cli; sys.argv[1:] = ['--help']\n"
        "try: understudy_cli.main()\nfinally: import stages.promote; print(stages.promote.__file__)"
    )
    ended = _run([sys.executable, "-c", code], elsewhere)

    assert 0 == ended.returncode, ended.stderr
    assert str(trial_runs._UNDERSTUDY.with_name("stages") / "promote.py") == ended.stdout.splitlines()[-1]


def test_a_foreign_package_that_is_already_imported_is_an_error(elsewhere: Path) -> None:
    """Such as one that a sitecustomize imports: one line, and no command is run."""
    (elsewhere / "pipeline" / "__init__.py").write_text("")
    ended = _run([sys.executable, "-c", "import pipeline, understudy_cli; understudy_cli.main()"], elsewhere)

    assert 1 == ended.returncode
    assert 1 == len(ended.stderr.splitlines())
    assert ended.stderr.startswith("understudy: the package `pipeline` is already imported from ")


def test_an_interruption_of_the_imports_is_one_line() -> None:
    """Ctrl-C in the first second."""
    code = (
        "import sys, understudy_cli\n"
        "class Interrupted:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        "understudy_cli.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )

    assert (130, "understudy: interrupted\n") == (ended.returncode, ended.stderr)
