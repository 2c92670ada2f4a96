"""A store's directory that is lost under a run is told as that, whatever ends the run."""

from pathlib import Path

import pytest

from pipeline.errors import UnderstudyError
from pipeline.store.artifacts import Store
from pipeline.store.presence import Presence


def _work(root: Path, error: BaseException | None, lose: bool = True) -> None:
    root.mkdir()
    with Presence(Store(root)):
        if lose:
            root.rename(root.with_name("elsewhere"))
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, FileNotFoundError("run.json")])
def test_a_lost_directory_is_told_in_place_of_an_error_and_at_the_end(tmp_path: Path, error: Exception | None) -> None:
    """Also where the last file was written before it was lost: nobody would find the result."""
    with pytest.raises(UnderstudyError, match="was removed, moved or unmounted"):
        _work(tmp_path / "store", error)


def test_an_interruption_stays_one(tmp_path: Path) -> None:
    """Ctrl-C has an exit code of its own. A directory that is there changes no error."""
    with pytest.raises(KeyboardInterrupt):
        _work(tmp_path / "lost", KeyboardInterrupt())
    with pytest.raises(KeyError):
        _work(tmp_path / "there", KeyError(), lose=False)
