"""The store: keys, atomic commits, damaged files, locks."""

import errno
import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.artifacts import MANIFEST, Artifact, Store
from pipeline.store.files import content_key, write_json
from pipeline.store.parsing import Format


def _commit(store: Store, content: str = "hello", key: str = "k1") -> Artifact:
    work = store.open_work("corpus", key, resumable=False)
    (work / "deep").mkdir()
    (work / "deep" / "file.txt").write_text(content)
    return store.commit(work, {"stage": "corpus", "key": key, "figures": {"n": 1.0}, "provides": {"x": "y"}})


def test_a_key_depends_on_content_and_not_on_order() -> None:
    """Equal settings have equal keys, different settings have different keys."""
    assert content_key({"a": 1, "b": [2]}) == content_key({"b": [2], "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        content_key({"a": float("nan")})


def test_what_is_committed_is_found(tmp_path: Path) -> None:
    """A commit moves the work directory into place and can be read back."""
    store = Store(tmp_path)
    committed = _commit(store)
    found = store.find("corpus", "k1")
    assert found is not None
    assert (committed.path, {"n": 1.0}, {"x": "y"}) == (found.path, found.figures, found.provides)
    assert [] == list((tmp_path / "work").iterdir())


def test_work_in_progress_is_never_found(tmp_path: Path) -> None:
    """The work directory of a killed run is not a result."""
    store = Store(tmp_path)
    (store.open_work("corpus", "k1", resumable=False) / "half").write_text("half")
    assert store.find("corpus", "k1") is None


def test_left_over_work_is_kept_only_for_stages_that_resume(tmp_path: Path) -> None:
    """A stage that cannot resume starts from an empty directory."""
    store = Store(tmp_path)
    (store.open_work("generate", "k1", resumable=True) / "shard").write_text("done")
    assert (store.open_work("generate", "k1", resumable=True) / "shard").exists()
    assert not (store.open_work("generate", "k1", resumable=False) / "shard").exists()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text("hell"), "has 4 bytes instead of 5"),
        (lambda path: path.write_text("hellO"), "was altered"),
    ],
)
def test_damage_is_found_and_the_file_named(tmp_path: Path, damage: Any, expected: str) -> None:
    """A missing, truncated or altered file is an error that names it and says what to do."""
    store = Store(tmp_path)
    path = _commit(store).path / "deep" / "file.txt"
    damage(path)
    with pytest.raises(UnderstudyError, match=expected) as caught:
        store.find("corpus", "k1")
    assert str(path) in str(caught.value)
    assert "delete" in str(caught.value)


def test_an_alteration_that_keeps_size_and_mtime_is_found_by_hashing(tmp_path: Path) -> None:
    """A skip compares size and mtime; check_hashes finds the change."""
    artifact = _commit(Store(tmp_path))
    path = artifact.path / "deep" / "file.txt"
    stat = path.stat()
    path.write_text("hellO")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    artifact.check_stats()
    with pytest.raises(UnderstudyError, match="altered"):
        artifact.check_hashes()


def test_what_a_kill_left_in_the_work_directory_is_not_committed(tmp_path: Path) -> None:
    """A run killed between manifest and rename, or within a write, does not spoil the next run's artifact."""
    store = Store(tmp_path)
    work = store.open_work("generate", "k1", resumable=True)
    (work / "shard").write_text("done")
    (work / MANIFEST).write_text("{}")
    (work / ".x.json.77.partial").write_text("half")
    (work / ".target.77.partial").mkdir()
    (work / ".target.77.partial" / ".y.json.78.partial").write_text("half")
    artifact = store.commit(work, {"stage": "generate", "key": "k1", "figures": {}, "provides": {}})
    assert {"shard"} == set(artifact.manifest.files)
    assert {"shard", MANIFEST} == {path.name for path in artifact.path.iterdir()}
    assert store.find("generate", "k1") is not None


def test_a_run_killed_while_it_writes_the_manifest_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in artifacts/ is whole: the manifest is written before the rename, and the next run starts anew."""
    store = Store(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.store.artifacts.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            _commit(store)
    assert store.find("corpus", "k1") is None
    _commit(store)
    assert store.find("corpus", "k1") is not None


def test_a_copied_store_is_still_valid(tmp_path: Path) -> None:
    """A new mtime alone is no damage: the content is compared."""
    store = Store(tmp_path)
    os.utime(_commit(store).path / "deep" / "file.txt", ns=(1, 1))
    assert store.find("corpus", "k1") is not None


def test_a_directory_without_its_manifest_is_named(tmp_path: Path) -> None:
    """A directory in artifacts/ without a manifest is an error, and is not overwritten."""
    store = Store(tmp_path)
    (_commit(store).path / MANIFEST).unlink()
    with pytest.raises(UnderstudyError, match=r"has no manifest\.json"):
        store.find("corpus", "k1")


def test_a_damaged_json_file_is_named(tmp_path: Path) -> None:
    """A truncated JSON file is an error of one line, not a traceback."""
    path = tmp_path / "run.json"
    path.write_text('{"a":')
    with pytest.raises(UnderstudyError, match=re.escape(str(path))):
        Format(name="thing", content=dict[str, int]).read(path)


def test_json_is_replaced_in_one_step_and_holds_no_nan(tmp_path: Path) -> None:
    """A failed write leaves the old file."""
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert {"a": 1} == json.loads(path.read_text())


def _hold(root: str, entered: Any, leave: Any) -> None:
    with Store(Path(root)).lock("corpus-k1"):
        entered.set()
        leave.wait(20)


def test_a_second_process_waits_for_the_lock_and_says_so(tmp_path: Path) -> None:
    """The lock is exclusive among processes; the end of a process frees it."""
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), entered, leave))
    process.start()
    assert entered.wait(20)
    waited = []

    def on_wait(holder: str) -> None:
        waited.append(holder)
        process.kill()

    with Store(tmp_path).lock("corpus-k1", on_wait):
        assert [True] == [said.startswith(f"process {process.pid} on ") for said in waited]
    process.join()


def test_a_lock_says_who_holds_it_and_waiting_for_it_ends(tmp_path: Path) -> None:
    """Who tries and does not get it, and who shares it, leaves the text of its holder as it is, or none."""
    store, us = Store(tmp_path), rf"process {os.getpid()} on .*, since \d{{4}}-\d\d-\d\dT.*Z"
    with store.lock("a"):
        with store.try_lock("a") as taken:
            assert not taken
        with (
            pytest.raises(UnderstudyError, match=rf"locks/a: not free within 0 minutes; held by {us}: see"),
            store.lock("a", wait_seconds=0),
        ):
            pass
        assert re.fullmatch(us, store.holder("a"))
    assert "another process" == store.holder("a")
    (tmp_path / "locks" / "a").write_text("process 1, which was killed")
    with store.lock("a", shared=True):
        assert "another process" == store.holder("a")


def test_a_store_cannot_be_made_in_a_file(tmp_path: Path) -> None:
    """The error names the file at the store's path or at one of its parents."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=rf"--store {tmp_path}/file: a file, not a directory"):
        Store(tmp_path / "file")
    with pytest.raises(UsageError, match=rf"--store {tmp_path}/file/a/b: {tmp_path}/file is a file"):
        Store(tmp_path / "file" / "a" / "b")


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """MLflow's database has no URI there, which was found at the end of a run's first stage."""
    with pytest.raises(UsageError, match=r"no UTF-8.*choose another directory") as caught:
        Store(tmp_path / os.fsdecode(b"\x80x") / "store")
    assert "\\udc80x" in str(caught.value)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the remedy, from every lock; what only reads goes on, and says that nobody has the lock."""
    store = Store(tmp_path)
    with store.lock("a"):
        pass

    def missing(stream: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("pipeline.store.locks.fcntl.flock", missing)
    for lock in (store.lock("a"), store.lock("a", shared=True), store.try_lock("a"), store.changing(tmp_path / "x")):
        with pytest.raises(UsageError, match=r"no file locks \(flock: Function not implemented\); choose"), lock:
            pass
    assert not store.is_locked("a")


def test_who_asks_for_a_lock_writes_nothing(tmp_path: Path) -> None:
    """Of a store that may only be read too."""
    store = Store(tmp_path)
    assert (False, []) == (store.is_locked("a"), list(tmp_path.iterdir()))
    with store.lock("a", shared=True):
        assert store.is_locked("a")
    assert not store.is_locked("a")
