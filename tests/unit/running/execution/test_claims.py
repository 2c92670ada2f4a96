"""Claims on parts: renewed while they are held, given up at the end, and those of others left alone."""

import os
import time
from pathlib import Path

import pytest

from pipeline.running.execution.claims import SILENT_SECONDS, Claims
from pipeline.store import processes
from pipeline.store.processes import own_tag

OTHER = f"0123456789ab-{own_tag().partition('-')[2]}"  # of a process on another machine
DEAD = f"{own_tag().partition('-')[0]}-4194305-1"  # no process of this machine has such an id


def _claim(directory: Path, name: str, tag: str, age: float = 0.0) -> Path:
    """A claim that was renewed so many seconds ago."""
    path = directory / f"{name}.claim"
    path.write_text(f"{tag} host 1")
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.mark.parametrize("is_left", [False, True], ids=["new", "taken over"])
def test_a_claim_is_renewed_while_it_is_held(is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, which knows nothing but its age, would take it over after two minutes."""
    monkeypatch.setattr(processes, "_BEAT_SECONDS", 0.01)
    if is_left:
        _claim(tmp_path, "squares-1.0", OTHER, SILENT_SECONDS + 1)
    with Claims(tmp_path, "squares-1").kept() as claims:
        assert claims.take("0")
        path = tmp_path / "squares-1.0.claim"
        os.utime(path, (1, 1))
        until = time.monotonic() + 30
        while path.stat().st_mtime == 1:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_claim_that_was_taken_over_says_who_holds_it(tmp_path: Path) -> None:
    """Its old tag would let the next process take it over too."""
    path = _claim(tmp_path, "squares-1.0", DEAD)
    with Claims(tmp_path, "squares-1").kept() as claims:
        assert "" == claims.holder("0")
        assert claims.take("0")
        assert own_tag() == path.read_text().split(" ")[0]
        assert f"(process {os.getpid()})" in claims.holder("0")
        assert not Claims(tmp_path, "squares-1").take("0")
    assert not path.exists()


def test_at_the_end_own_claims_and_those_of_the_dead_go(tmp_path: Path) -> None:
    """Claims of others that live stay, and so does whatever is on another artifact."""
    for name, tag, age in [
        ("squares-1.dead", DEAD, 0.0),
        ("squares-1.silent", OTHER, SILENT_SECONDS + 1),
        ("squares-1.alive", OTHER, SILENT_SECONDS - 30),
        ("squares-2.own", own_tag(), 0.0),
        ("squares-2.silent", OTHER, SILENT_SECONDS + 1),
    ]:
        _claim(tmp_path, name, tag, age)
    with Claims(tmp_path, "squares-1").kept() as claims:
        assert claims.take("own")
    assert ["squares-1.alive", "squares-2.own", "squares-2.silent"] == sorted(path.stem for path in tmp_path.iterdir())


def test_a_claim_that_another_has_taken_over_is_not_released(tmp_path: Path) -> None:
    """Of a task that was silent too long: the part is the other's now."""
    with Claims(tmp_path, "squares-1").kept() as claims:
        assert claims.take("0")
        path = _claim(tmp_path, "squares-1.0", OTHER)
        claims.release("0")
        assert path.exists()
    assert path.exists()


def test_parts_of_two_artifacts_with_one_name_are_two(tmp_path: Path) -> None:
    """Shards have the same names in all."""
    assert [True, True, False] == [Claims(tmp_path, name).take("0") for name in ("squares-1", "squares-2", "squares-1")]
