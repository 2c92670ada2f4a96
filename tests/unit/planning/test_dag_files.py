"""`understudy dags`: what is written into a DAG folder, and what is never overwritten unsaid."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.planning import dag_files
from pipeline.planning.dag_files import write_dags

NAMES = ["acceptance_watch.py", "draft_retraining.py", "understudy_tasks.py"]


def what(out: Path, overwrite: bool = False) -> list[tuple[str, str, str]]:
    return [(file.path.name, file.what, file.before) for file in write_dags(out, overwrite)]


def test_every_dag_file_is_written_with_the_version(tmp_path: Path) -> None:
    """The folder is made, and the files are those of the checkout below a line that says where they are from."""
    out = tmp_path / "dags" / "understudy"
    assert [(name, "written", "") for name in NAMES] == what(out)
    for name in NAMES:
        first, rest = (out / name).read_text().split("\n", 1)
        assert first.startswith("# Written by `understudy dags`, version ")
        assert (dag_files._SOURCE / name).read_text() == rest


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    """The same version finds its own files."""
    write_dags(tmp_path, overwrite=False)
    assert [(name, "up to date", "") for name in NAMES] == what(tmp_path)


def test_a_file_of_an_earlier_version_is_replaced_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade needs no option."""
    with monkeypatch.context() as earlier:
        earlier.setattr("importlib.metadata.version", lambda name: "0.0.9")
        write_dags(tmp_path, overwrite=False)
    assert [(name, "replaced", "0.0.9") for name in NAMES] == what(tmp_path)


@pytest.mark.parametrize("before", ["retries=9\n", ""])
def test_a_changed_file_stops_before_anything_is_written(tmp_path: Path, before: str) -> None:
    """One that an operator edited, or that is not of Understudy: exit code 2, and no other file is touched."""
    write_dags(tmp_path, overwrite=False)
    changed = tmp_path / "draft_retraining.py"
    text = changed.read_text()
    changed.write_text(text + before if before else "print()\n")
    (tmp_path / "understudy_tasks.py").unlink()
    with pytest.raises(
        UsageError, match=r"draft_retraining.py: changed since .*; keep what you need of it, then add --overwrite"
    ):
        write_dags(tmp_path, overwrite=False)
    assert not (tmp_path / "understudy_tasks.py").exists()

    assert ("draft_retraining.py", "replaced", "a changed file") in what(tmp_path, overwrite=True)
    assert text == changed.read_text()


def test_out_must_be_a_directory(tmp_path: Path) -> None:
    """A file of that name is named."""
    (tmp_path / "dags").write_text("")
    with pytest.raises(UsageError, match="not a directory"):
        write_dags(tmp_path / "dags", overwrite=False)
    with pytest.raises(UsageError, match=r"--out .*choose another directory"):
        write_dags(tmp_path / "dags" / "below", overwrite=False)
