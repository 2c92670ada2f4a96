"""One list of parts, in one process and in several: what is made, once, and what happens where a worker dies."""

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.execution import ExecutionConfig, RayConfig
from pipeline.config.loading import load_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.running.execution import local
from pipeline.running.execution import spread as module
from pipeline.running.execution.driver import Driver
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Part, Share, Work, drop_parts, kept_parts
from pipeline.store import worker_processes
from pipeline.store.processes import own_tag, running_process
from pipeline.store.worker_processes import environment_of_each
from tests.unit.running.execution.other_task import context_of, log_of, make
from tests.unit.running.execution.work import (
    BeginsWithOthers,
    Large,
    Squares,
    contents,
    expected,
    go_on,
    open_large,
    squares,
    times,
    work,
)

LOCAL = {"one process": ExecutionConfig(), "two": ExecutionConfig(local=2)}
Begin = Callable[..., Any]


@pytest.fixture
def context(tmp_path: Path) -> Begin:
    """A stage's context with a store of its own."""
    (tmp_path / "log").mkdir()
    (tmp_path / "store/work/squares-1").mkdir(parents=True)

    def made(execution: ExecutionConfig = LOCAL["one process"], share: Share | None = None) -> Any:
        return context_of(tmp_path / "store", execution, share)

    return made


def _left(context: Any) -> list[str]:
    return [path.name for path in context.store.parts.iterdir()]


@pytest.mark.parametrize("execution", LOCAL.values(), ids=LOCAL)
def test_all_parts_are_made_once(context: Begin, execution: ExecutionConfig) -> None:
    """Each part once, wherever; what is complete stays as it is, and where nothing is missing nothing is loaded. Nothing is left
    of claims and unfinished parts."""
    here = context(execution)
    (here.out / "1.a").write_text("the first file alone is no part")
    (here.out / "8.b").write_text("done")

    assert 0 == make(here, 9)
    assert expected(range(8)) | {"8.b": "done"} == contents(here.out)
    before = times(log_of(here), "opened-*")
    assert 0 == make(here, 9)
    assert (8, before) == (times(log_of(here), "made-*"), times(log_of(here), "opened-*"))
    assert [] == _left(here)
    assert [f"cpu {platform.machine()}"] * (execution.local if execution.local > 1 else 0) == [
        one.device for one in here.workers
    ]
    assert all(one.peak["process"] > 0 for one in here.workers)


def test_what_is_loaded_is_kept_for_all_lists_of_parts(context: Begin) -> None:
    """Such as the turns of chats."""
    here = context()
    with Spread(here, work(Squares(log_of(here)))) as spread:
        for count in (4, 8):
            spread.make(squares(count), "squares", "numbers")

    assert (1, 8) == (times(log_of(here), "opened-cpu-*"), times(log_of(here), "made-*"))


def test_each_process_has_its_gpu_until_the_stage_ends(context: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both GPUs are used, by workers that load once, and free for the next stage. They share the threads of the machine."""
    monkeypatch.setattr(local, "_gpus", lambda: 2)
    monkeypatch.setattr(worker_processes, "processors", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = context(LOCAL["two"])
    here.resources.device = "cuda"
    with Spread(here, work(BeginsWithOthers(log_of(here)))) as spread:
        for count in (4, 8):
            spread.make(squares(count), "squares", "numbers")
        workers = [int(path.name.split("-")[-2]) for path in log_of(here).glob("opened-*")]
        assert all(map(running_process, workers))

    assert (1, 1) == (times(log_of(here), "opened-cuda:0-3-*"), times(log_of(here), "opened-cuda:1-3-*"))
    assert (2, 8) == (len(workers), times(log_of(here), "made-*"))
    assert not any(map(running_process, workers))
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_user_may_say_in_how_many_threads_each_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that holds for the command itself."""
    monkeypatch.setattr(worker_processes, "processors", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "5" == environment_of_each(2)["OMP_NUM_THREADS"]


def test_a_worker_that_dies_is_named_and_its_part_made_again(
    context: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice is an accident; the other worker goes on meanwhile."""
    here = context(LOCAL["two"])

    assert 0 == make(here, 6, (3, "kill-2"))
    assert expected(range(6)) == contents(here.out)
    assert (3, 8) == (times(log_of(here), "made-3-*"), times(log_of(here), "made-*"))
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert ["(1 of 3)", "(2 of 3)"] == [line[-8:] for line in lines]
    assert all("was killed by SIGKILL while it made 3, which is made again" in line for line in lines)


def test_what_a_killed_worker_has_written_is_no_part(context: Begin) -> None:
    """It has written all files of it, with half of their content: run again, the part is missing. Three workers are enough: a
    part that cannot be made ends the stage by its name. What is done is kept, nothing else is left."""
    here = context(LOCAL["two"])

    with pytest.raises(
        UnderstudyError, match=r"^4: 3 workers died while they made it, the last one \(worker . .*SIGKILL"
    ):
        make(here, 5, (4, "spoil-3"))
    assert 3 == times(log_of(here), "made-4-*")
    assert expected(range(4)) == contents(here.out)
    assert [] == _left(here)
    assert 0 == make(here, 5)
    assert expected(range(5)) == contents(here.out)


@pytest.mark.parametrize("execution", LOCAL.values(), ids=LOCAL)
def test_errors_of_a_worker_are_those_of_the_stage(context: Begin, execution: ExecutionConfig) -> None:
    """A user's mistake keeps its class and so its exit code, a bug its type; neither is tried again."""
    here = context(execution)

    with pytest.raises(UsageError, match=r"^1 cannot be squared$"):
        make(here, 3, (1, "usage"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        make(here, 3, (1, "bug"))
    assert 2 == times(log_of(here), "made-1-*")


def test_workers_end_before_the_directory_goes_that_they_write_to(
    context: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one of them fails, the others are in the middle of a part."""
    there = list[bool]()

    class Fails:
        def make(self, driver: Driver) -> None:
            self.staging = driver.staging
            raise UsageError("cannot be squared")

        def close(self) -> None:
            there.append(self.staging.is_dir())

        def facts(self) -> list[Any]:
            return []

    monkeypatch.setattr(module, "_place", lambda *_: Fails())
    with pytest.raises(UsageError, match="cannot be squared"):
        make(context(), 1)
    assert there[0]


def test_workers_start_at_the_same_time(context: Begin) -> None:
    """A part may be larger than a pipe takes at once; it is read when a worker has imported what it needs."""
    here = context(LOCAL["two"])
    parts = [Part(part.name, part.files, part.amount, partial(Large, int(part.name))) for part in squares(3)]
    with Spread(here, Work(open_large, BeginsWithOthers(log_of(here)))) as spread:
        assert 0 == spread.make(parts, "squares", "numbers")

    assert expected(range(3)) == contents(here.out)
    assert (2, 0) == (times(log_of(here), "begun-*"), times(log_of(here), "alone-*"))


def test_shares_are_made_apart_and_all_of_them_are_all(context: Begin) -> None:
    """Each task makes its own parts and says how many of the others are missing; without a share, whatever is missing is made."""
    assert 6 == make(context(share=Share(3, 3)), 9)
    assert expected([2, 5, 8]) == contents(context().out)
    assert 3 == make(context(share=Share(1, 3)), 9)
    assert 0 == make(context(), 9)
    assert expected(range(9)) == contents(context().out)
    assert 9 == times(log_of(context()), "made-*")


def _start_other(here: Any) -> subprocess.Popen[bytes]:
    """A command with two workers, in the middle of its first part."""
    call = [sys.executable, "-m", "tests.unit.running.execution.other_task", str(here.store)]
    other = subprocess.Popen(call, cwd=Path(__file__).parents[4], stderr=subprocess.PIPE, start_new_session=True)
    while not times(log_of(here), "made-0-*"):
        assert other.poll() is None
        time.sleep(0.01)
    return other


def _fork_other(here: Any) -> Any:
    """Another task without workers, in the middle of its first part: a process that is forked, so that nothing is imported."""
    given = (context_of(here.store.root, LOCAL["one process"]), 4)
    other = multiprocessing.get_context("fork").Process(target=make, args=given, kwargs={"pause": 60.0})
    other.start()
    while not times(log_of(here), "made-0-*"):
        assert other.exitcode is None
        time.sleep(0.01)
    return other


def test_two_tasks_make_no_part_twice(
    context: Begin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that another task is making is left to it, and waited for, with its host's name in a line."""
    here = context()

    def look(seconds: float) -> None:
        go_on(log_of(here))  # the other task, now that it is waited for
        time.sleep(0.02)

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=look))
    other = _fork_other(here)
    assert 0 == make(here, 4)
    assert expected(range(4)) == contents(here.out)
    other.join(30)

    assert 0 == other.exitcode
    assert expected(range(4)) == contents(here.out)
    assert 4 == times(log_of(here), "made-*")
    said = capsys.readouterr().err
    assert "  1 shard is being made by another task (" in said
    assert f"(process {other.pid})); waiting" in said
    assert [] == _left(here)


def test_a_killed_task_leaves_its_part_to_the_next(context: Begin) -> None:
    """On the same machine its claim ends with it."""
    here = context()
    other = _fork_other(here)
    other.kill()
    other.join()
    make(here, 4)

    assert expected(range(4)) == contents(here.out)
    assert 2 == times(log_of(here), "made-0-*")
    assert [] == _left(here)


def test_workers_end_with_a_command_that_is_killed(context: Begin) -> None:
    """At once, also in the middle of a part: they would keep the memory of a GPU."""
    here = context()
    with _start_other(here) as other:
        workers = [int(path.name.split("-")[-2]) for path in log_of(here).glob("opened-*")]
        assert other.pid not in workers
        other.kill()

    until = time.monotonic() + 30
    while any(map(running_process, workers)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_interruption_ends_command_and_workers(context: Begin) -> None:
    """Ctrl-C reaches all of them: the command says so, workers say nothing."""
    here = context()
    with _start_other(here) as other:
        os.killpg(other.pid, signal.SIGINT)
        _, said = other.communicate(timeout=30)
    workers = [int(path.name.split("-")[-2]) for path in log_of(here).glob("opened-*")]

    assert 1 == said.count(b"KeyboardInterrupt"), said.decode()
    assert [] == [running_process(worker) for worker in workers if running_process(worker)]
    assert [] == _left(here)


def test_an_interruption_while_a_worker_starts_is_an_interruption(
    context: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler's SIGTERM may come at any moment."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    here = context(LOCAL["two"])
    monkeypatch.setattr(worker_processes, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(here, 2)
    assert [] == _left(here)


def test_a_claim_of_another_container_counts_until_it_is_silent(
    context: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process cannot be seen from here, so the age decides; a beat renews it."""
    here = context()
    here.store.parts.mkdir()
    claim = here.store.parts / "squares-1.0.claim"
    claim.write_text(f"0123456789ab-{own_tag().partition('-')[2]} pod-3 1")
    silent = time.time() - 120 + 0.4
    os.utime(claim, (silent, silent))
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)
    began = time.monotonic()
    assert 0 == make(here, 2)

    assert expected(range(2)) == contents(here.out)
    assert time.monotonic() - began > 0.3
    assert 1 == times(log_of(here), "made-0-*")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"a b c d e", b"x" * 9999], ids=["empty", "no text", "words", "long"]
)
def test_a_claim_that_cannot_be_read_counts_by_its_age(context: Begin, content: bytes) -> None:
    """Such as one whose writer was killed at once: it is taken over, and removed."""
    here = context()
    here.store.parts.mkdir()
    claim = here.store.parts / "squares-1.0.claim"
    claim.write_bytes(content)
    os.utime(claim, (time.time() - 121, time.time() - 121))

    assert 0 == make(here, 2)
    assert [] == _left(here)


def test_a_part_that_another_task_has_finished_stays_as_it_is(context: Begin) -> None:
    """Where two tasks have made one after all: of nodes that differ, files of both would not fit together."""
    here = context()

    def open_overtaken(task: Squares, device: str) -> Any:
        def make(number: int, out: Path, advance: Callable[[float], None]) -> None:
            for place, text in ((here.out, "first"), (out, "late")):
                for name in (f"{number}.a", f"{number}.b"):
                    (place / name).write_text(text)

        return make

    with Spread(here, Work(open_overtaken, Squares(log_of(here)))) as spread:
        assert 0 == spread.make(squares(1), "squares", "numbers")
    assert {"0.a": "first", "0.b": "first"} == contents(here.out)


def test_a_part_that_is_finished_late_adds_nothing_to_what_is_committed(context: Begin) -> None:
    """The directory has been renamed while a task was making its last part."""
    here = context()
    other = _fork_other(here)
    here.out.rename(here.out.with_name("committed"))
    go_on(log_of(here))
    other.join(30)

    assert 1 == other.exitcode
    assert {} == contents(here.out.with_name("committed"))
    assert not here.out.exists()
    assert [] == _left(here)


def test_a_directory_that_is_gone_has_no_parts(context: Begin) -> None:
    """Committed by another process while this one began: that is not the same as made here."""
    here = context()
    here.out.rmdir()
    with pytest.raises(FileNotFoundError):
        make(here, 0)


def test_parts_may_be_kept_beside_the_artifact(context: Begin) -> None:
    """Its own directory holds none of them; a part that is finished after they were deleted is an error, and adds nothing."""
    here = context()
    kept = kept_parts(here.store, here.out.name)
    kept.mkdir(parents=True)
    with Spread(here, work(Squares(log_of(here))), kept) as spread:
        assert 0 == spread.make(squares(3), "squares", "numbers")
        assert (expected(range(3)), {}) == (contents(kept), contents(here.out))
        drop_parts(here.store, here.out.name)
        with pytest.raises(FileNotFoundError):
            spread.make(squares(3), "squares", "numbers")
    assert [] == _left(here)


@pytest.mark.parametrize("execution", LOCAL.values(), ids=LOCAL)
def test_finished_parts_are_checked_before_others_are_made(context: Begin, execution: ExecutionConfig) -> None:
    """Those of an earlier run, before anything is loaded; then after each. An error of the check ends the work."""
    here, seen = context(execution), list[int]()

    def check() -> None:
        seen.append(sum(part.is_in(here.out) for part in squares(9)))
        if seen[-1] in (3, 4):
            raise UnderstudyError("no samples")

    with Spread(here, work(Squares(log_of(here)))) as spread, pytest.raises(UnderstudyError, match="no samples"):
        spread.make(squares(9), "squares", "numbers", check)
    assert [0, 1, 2, 3] == seen
    before = times(log_of(here), "opened-*")
    with Spread(here, work(Squares(log_of(here)))) as spread, pytest.raises(UnderstudyError, match="no samples"):
        spread.make(squares(9), "squares", "numbers", check)
    assert (before, 3) == (times(log_of(here), "opened-*"), len(contents(here.out)) // 2)


def test_ray_that_is_not_installed_is_said_in_one_line(context: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"Ray is not installed; install understudy\[ray\], or use execution.local"):
        make(context(ExecutionConfig(ray=RayConfig())), 1)


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "a/b", "1/", "-1/4"])
def test_what_is_no_share_is_said(text: str) -> None:
    """From 1/M to M/M."""
    with pytest.raises(ValueError, match=f"^{text} is no share: write 3/16"):
        Share.parse(text)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("execution={local: 2, ray: {}}", "`local: 2` and `ray` exclude each other"),
        ("device=cuda:1", "device is cuda:1, and Ray chooses the GPUs of its workers; set device to cuda"),
        ("device=cuda", "device is cuda, and Ray gives its workers no GPU; set execution.ray.gpus to 1"),
    ],
)
def test_a_place_that_cannot_be_is_a_mistake_of_the_config(change: str, complaint: str) -> None:
    """Before anything starts."""
    smoke = Path(__file__).parents[4] / "configs" / "smoke.yaml"
    with pytest.raises(UsageError, match=complaint):
        load_config(smoke, ["execution.ray={workers: 2}", change])
