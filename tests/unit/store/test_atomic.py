"""Atomic files: whole for readers, nothing left after an error, and writers with one process id do not disturb each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store.atomic import PARTIAL, replacing, replacing_directory
from pipeline.store.files import write_json

_WRITER = """
import os, sys
from pathlib import Path
from pipeline.store.files import write_json
os.getpid = lambda: 7  # as in a container
for number in range(400):
    write_json(Path(sys.argv[1]), {"number": number, "text": sys.argv[2] * 2000})
"""


def test_two_writers_with_one_process_id(tmp_path: Path) -> None:
    """Two containers that share a volume: every write succeeds, and the file is that of one of them."""
    path = tmp_path / "state.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), text], stderr=subprocess.PIPE, text=True)
        for text in "ab"
    ]
    ends = [(writer.communicate(timeout=100)[1], writer.returncode) for writer in writers]

    assert [("", 0)] * 2 == ends
    assert 399 == json.loads(path.read_text())["number"]
    assert [path] == list(tmp_path.iterdir())


def test_an_error_keeps_the_old_content(tmp_path: Path) -> None:
    """Of files and directories; nothing is left beside them."""
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"new": float("nan")})
    with pytest.raises(FileNotFoundError), replacing_directory(tmp_path / "a") as work:
        (work / "missing" / "file").write_text("half")

    assert {"old": 1} == json.loads((tmp_path / "a.json").read_text())
    assert ["a.json"] == [path.name for path in tmp_path.iterdir()]


def test_unfinished_content_has_a_name_that_the_store_deletes(tmp_path: Path) -> None:
    """As a killed process leaves it; at the end it is in place, with the permissions of any new file."""
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "a") as file, replacing_directory(tmp_path / "b") as directory:
        assert {file, directory} == set(tmp_path.glob(PARTIAL))
        file.write_text("whole")

    assert "whole" == (tmp_path / "a").read_text()
    assert {"a", "b", "plain"} == set(os.listdir(tmp_path))
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "a").stat().st_mode


def test_a_directory_replaces_an_empty_one_only(tmp_path: Path) -> None:
    """Files of somebody else are not lost."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "inside").mkdir(parents=True)
    with replacing_directory(tmp_path / "empty") as work:
        (work / "file").touch()
    with pytest.raises(OSError, match="not empty"), replacing_directory(tmp_path / "full"):
        pass

    assert ["file"] == os.listdir(tmp_path / "empty")
    assert ["inside"] == os.listdir(tmp_path / "full")
