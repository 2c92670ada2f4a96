"""docs/tutorial.md, word for word in a shell: every command succeeds, and prints what the page shows.

The engine is the vLLM of `VLLM_PYTHON`, where that is set, and else a stand-in that decodes with the same two models.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Place, command_line
from tests.tutorial_page import PAGE, missing, steps

ROOT = Path(__file__).parents[2]
SECONDS = 900
_PORT = "8000"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="runs in a checkout")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory that looks like the reader's checkout, and an environment with `understudy` and an engine."""
    here, programs = tmp_path / "understudy", tmp_path / "bin"
    here.mkdir()
    programs.mkdir()
    (here / "docs").symlink_to(ROOT / "docs")
    words = {
        "understudy": shlex.join(command_line()),
        "python": shlex.quote(sys.executable),
        "engine": f"{shlex.quote(sys.executable)} -m tests.tutorial_engine",
    }
    for name, command in words.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    environment = Place(tmp_path / "place").prepare().environment(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="1")
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["VLLM_PYTHON"] = os.environ.get("VLLM_PYTHON", str(programs / "engine"))
    yield here, environment
    pid = here / "engine.pid"
    if pid.exists():
        subprocess.run(["kill", pid.read_text().strip()], check=False, capture_output=True)


@pytest.mark.long
def test_the_tutorial_works(shell: tuple[Path, dict[str, str]]) -> None:
    """From two models and a log to a draft that is promoted, served, watched, retrained and rolled back."""
    here, environment = shell
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for step in steps(PAGE.read_text(encoding="utf-8")):
        command, _, code = step.command.replace(_PORT, port).partition(" # exit code ")
        output = here / "output"
        with output.open("w") as out:  # a file, since the engine in the background keeps a pipe open
            ended = subprocess.run(
                ["bash", "-c", command],
                cwd=here,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        printed = output.read_text().replace(port, _PORT)
        assert int(code or 0) == ended.returncode, f"$ {command}\n{printed}"
        assert missing(step.shown, printed, str(here)) == "", f"$ {command}\n{printed}"
