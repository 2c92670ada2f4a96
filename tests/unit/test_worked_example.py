"""The worked example of CONTRIBUTING.md applies to the code as it is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CODE = (
    "pipeline",
    "stages",
    "tests/__init__.py",
    "tests/unit/__init__.py",
    "tests/unit/conftest.py",
    "tests/unit/distillation/test_losses.py",
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists() or shutil.which("git") is None, reason="runs in a checkout, with git"
)


def test_the_diff_applies(tmp_path: Path) -> None:
    """To a copy, whose config then accepts the loss."""
    _applied(tmp_path)
    _succeeds([sys.executable, "-c", _ACCEPTED], tmp_path)


@pytest.mark.long
def test_the_diff_adds_a_loss(tmp_path: Path) -> None:
    """The tests of losses that name it pass."""
    _applied(tmp_path)
    out = _succeeds([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_SELECTED], tmp_path)
    assert " passed" in out
    assert "failed" not in out


def _applied(tmp_path: Path) -> None:
    for name in _CODE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    diff = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```diff\n")[1].split("```")[0]
    _succeeds(["git", "apply", "-"], tmp_path, diff)


_ACCEPTED = "from pipeline.config.distill import DistillConfig; DistillConfig(loss='skew_kl')"
_SELECTED = ("-c", os.devnull, "--rootdir", ".", "tests/unit/distillation/test_losses.py", "-k", "skew_kl")


def _succeeds(command: list[str], where: Path, given: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(where), "GIT_CEILING_DIRECTORIES": str(where.parent)}
    done = subprocess.run(command, cwd=where, env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
