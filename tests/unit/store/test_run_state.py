"""The state of a run is derived from its processes: dead ones do not run, on this machine and on others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.store import processes
from pipeline.store.artifacts import Store
from pipeline.store.atomic import temporary_name
from pipeline.store.processes import is_alive, is_gone, own_tag, sign_life, signs, signs_of_life
from pipeline.store.runs import RunRecord, run_directory, run_lock, state_of

_WORKER = """
import sys, time
from pathlib import Path
from pipeline.store.atomic import replacing, replacing_directory
from pipeline.store.processes import signs_of_life
where = Path(sys.argv[1])
with signs_of_life(where), replacing(where / "a.json"), replacing_directory(where / "b") as b:
    (b / "file").write_text("half")
    print("working", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> tuple[Store, RunRecord]:
    store = Store(tmp_path)
    record = RunRecord(id="r", name="n", created="2026-11-25T00:00:00Z", config={}, outside={})
    record.save(store)
    return store, record


def _worker(store: Store) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", _WORKER, str(run_directory(store, "r"))]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "working\n" == process.stdout.readline()
    return process


def _of_another_machine(store: Store, seconds_ago: float) -> None:
    path = run_directory(store, "r") / ".process.0123456789ab-1-1"
    path.touch()
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_a_killed_run_is_interrupted_at_once(run: tuple[Store, RunRecord]) -> None:
    """On the machine that it ran on; while SIGSTOP stops it, it is running. Its record says `running` all the time."""
    store, record = run
    states = [state_of(store, record)]
    process = _worker(store)
    try:
        states.append(state_of(store, record))
        process.send_signal(signal.SIGSTOP)
        states.append(state_of(store, record))
    finally:
        process.kill()
        process.communicate()
    states.append(state_of(store, record))

    assert ["interrupted", "running", "running", "interrupted"] == states


def test_a_killed_run_that_nobody_waits_for_is_interrupted(run: tuple[Store, RunRecord]) -> None:
    """Its process id stays, such as in a container whose first process does not wait for others."""
    store, record = run
    process = _worker(store)
    try:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert "interrupted" == state_of(store, record)
    finally:
        process.communicate()


def test_a_stopped_run_is_running_while_tasks_work_on_it(run: tuple[Store, RunRecord]) -> None:
    """They write no record. A run that has ended is not waiting for any."""
    store, record = run
    seen = list[tuple[str, str, str]]()
    for state in ("stopped", "finished", "failed"):
        record.state = state
        before = state_of(store, record)
        with signs_of_life(run_directory(store, "r")):
            during = state_of(store, record)
        seen.append((before, during, state_of(store, record)))

    assert [("stopped", "running", "stopped"), ("finished",) * 3, ("failed",) * 3] == seen


def test_where_start_times_are_not_known_the_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without /proc: a run would otherwise take its own process for dead. A sign that was removed is none."""
    monkeypatch.setattr(processes, "running_process", lambda _: "")
    sign = sign_life(tmp_path)
    alive = is_alive(sign)
    os.utime(sign, (time.time() - 700,) * 2)

    assert (True, False) == (alive, is_alive(sign))
    sign.unlink()
    assert is_gone("0123456789ab-1-1", sign, 600)


def test_a_process_that_is_hidden_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc with `hidepid`, as on clusters, shows nobody the processes of other users: their age decides, as of another machine.
    One that the system says is not there has ended, whoever asks."""
    sign = sign_life(tmp_path)
    others = str(processes.running_process(os.getpid())).replace(str(os.getpid()), "77", 1)
    hidden = sign.rename(sign.with_name(sign.name.replace(f"-{os.getpid()}-", "-77-")))
    monkeypatch.setattr(processes, "running_process", lambda _: "")

    def kill(pid: int, number: int) -> None:
        raise PermissionError if pid == 77 else ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    alive = is_alive(hidden)
    os.utime(hidden, (time.time() - 700,) * 2)

    assert (True, False) == (alive, is_alive(hidden))
    assert (None, True, None) == tuple(map(processes.has_ended, (others, "78 1", "no process")))


def test_who_has_the_lock_is_at_work(run: tuple[Store, RunRecord]) -> None:
    """Also one whose process id cannot be seen, such as in another container on this machine."""
    store, record = run
    with store.lock(run_lock("r"), shared=True):
        assert "running" == state_of(store, record)
    assert "interrupted" == state_of(store, record)


@pytest.mark.parametrize(("seconds", "expected"), [(-3600, "running"), (90, "running"), (700, "interrupted")])
def test_of_another_machine_the_last_sign_of_life_decides(
    run: tuple[Store, RunRecord], seconds: float, expected: str
) -> None:
    """Ten minutes without one; a sign from the future, after the clock was set back, counts."""
    store, record = run
    _of_another_machine(store, seconds)
    assert expected == state_of(store, record)


def test_a_clock_that_is_wrong_ends_no_run(run: tuple[Store, RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are measured by the clock of the file system, not by that of the reader."""
    store, record = run
    _of_another_machine(store, 5)
    ahead = time.time() + 3600
    monkeypatch.setattr("pipeline.store.processes.time.time", lambda: ahead)
    assert "running" == state_of(store, record)


def test_signs_of_life_are_renewed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For other machines to see, as long as the work goes on."""
    monkeypatch.setattr(processes, "_BEAT_SECONDS", 0.01)
    with signs_of_life(tmp_path):
        (sign,) = signs(tmp_path)
        os.utime(sign, (0, 0))
        for _ in range(1000):
            if sign.stat().st_mtime:
                break
            time.sleep(0.01)
        assert sign.stat().st_mtime > 0
    assert [] == signs(tmp_path)


def test_an_id_that_another_process_got_is_not_the_process(run: tuple[Store, RunRecord]) -> None:
    """The start time is part of the tag."""
    store, record = run
    machine, pid, start = own_tag().split("-")
    sign_life(run_directory(store, "r")).rename(
        run_directory(store, "r") / f".process.{machine}-{pid}-{int(start) - 1}"
    )
    assert "interrupted" == state_of(store, record)


def test_temporary_files_of_dead_processes_are_removed(run: tuple[Store, RunRecord]) -> None:
    """Files and directories; those of live processes stay, and those of other machines for a day."""
    store, _ = run
    process, folder = _worker(store), run_directory(store, "r")
    try:
        mine, foreign, old = (temporary_name(folder / name) for name in ("mine", "foreign", "old"))
        foreign, old = (one.with_name(one.name.replace(own_tag(), "0123456789ab-1-1")) for one in (foreign, old))
        for path in (mine, foreign, old):
            path.touch()
        os.utime(old, (time.time() - 2 * 86400,) * 2)
        while_alive = store.remove_left_behind()
    finally:
        process.kill()
        process.communicate()
    (store.root / "artifacts").mkdir()
    kept = temporary_name(store.root / "artifacts" / "x")
    kept.touch()
    gone = store.remove_left_behind()

    assert [old] == while_alive
    assert [".a.json", ".b"] == sorted(path.name.rpartition(".partial")[0].rpartition(".")[0] for path in gone)
    assert (True, True, True) == (mine.exists(), foreign.exists(), kept.exists())
    assert not any(path.exists() for path in gone)
