"""How the first process of a launcher tells the others what to train, that a training has failed, and that it has ended."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from pipeline.distillation import processes
from pipeline.distillation.launchers import Launch
from pipeline.distillation.processes import Control
from pipeline.distillation.workers import _free_port
from pipeline.errors import UnderstudyError

Join = Callable[..., Control]


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Join:
    """A process of a launcher; rank 0 first. The others look every tenth of a second whether the first still answers."""
    monkeypatch.setattr(processes, "_LOOK", timedelta(seconds=0.1))
    monkeypatch.setattr(processes, "_LEAVE_SECONDS", 3600.0)
    first = Launch(rank=0, size=2, local_rank=0, address="127.0.0.1", port=_free_port(), agent=False, attempt="0")
    return lambda rank, **changes: Control(replace(first, rank=rank, **changes))


def _answers(ask: Callable[[], object]) -> list[object]:
    """What it returns or raises; nothing if it takes half a minute."""
    found = list[object]()

    def asked() -> None:
        try:
            found.append(ask())
        except Exception as error:
            found.append(error)

    asking = threading.Thread(target=asked, daemon=True)
    asking.start()
    asking.join(30)
    return found


def test_trainings_are_told_in_order_and_then_the_end(join: Join) -> None:
    """Also those that were told before anyone listened."""
    first, other = join(0), join(1)
    first.tell("1 a")
    first.tell("1 b")
    assert ["1 a", "1 b"] == [other.next_task(), other.next_task()]
    ending = threading.Thread(target=first.end, daemon=True)
    ending.start()
    assert [None] == _answers(other.next_task)
    other.left()
    ending.join(30)
    assert not ending.is_alive()


def test_a_first_process_that_takes_its_time_is_waited_for(join: Join) -> None:
    """Stages before a training take hours; the others look now and then, and go on waiting."""
    first, other = join(0), join(1)
    timer = threading.Timer(0.5, first.tell, ["1 a"])
    timer.start()
    assert "1 a" == other.next_task()
    timer.join()


def test_the_first_process_ends_after_the_others_know(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store ends with it: who has not asked by then finds nobody. One that is gone is not waited for without end."""
    first, others = join(0, size=3), [join(1, size=3), join(2, size=3)]
    ending = threading.Thread(target=first.end, daemon=True)
    ending.start()
    others[0].left()
    ending.join(0.3)
    assert ending.is_alive()
    others[1].left()
    ending.join(30)
    assert not ending.is_alive()

    monkeypatch.setattr(processes, "_LEAVE_SECONDS", 0.1)
    join(0, port=_free_port()).end()


def test_a_failure_is_that_of_its_training(join: Join) -> None:
    """Every process sees it, whichever failed. The next training begins without it."""
    first, other = join(0), join(1)
    first.tell("1 a")
    other.next_task()
    assert [None, None] == [first.failure(), other.failure()]
    other.fail("no space left")
    assert ["no space left"] * 2 == [first.failure(), other.failure()]
    first.tell("1 b")
    other.next_task()
    assert [None, None] == [first.failure(), other.failure()]


def test_a_launcher_that_starts_again_begins_anew(join: Join) -> None:
    """Its store outlives its processes: what the first attempt was told to train, and that it failed, is over."""
    first = join(0)
    first.tell("1 a")
    first.fail("killed")
    second, other = join(1, attempt="1"), join(1, attempt="1")
    second.tell("2 a")
    assert ("2 a", None) == (other.next_task(), other.failure())


def test_a_first_process_that_has_ended_is_said(join: Join) -> None:
    """Killed, it says nothing: the others must not wait for it for ever."""
    first, other = join(0), join(1)
    first.tell("1 a")
    assert "1 a" == other.next_task()
    del first  # the store ends with it
    assert "the first process of the launcher has ended" == other.failure()
    (said,) = _answers(other.next_task)
    assert (UnderstudyError, "the first process of the launcher has ended") == (type(said), str(said))


def test_the_first_process_waits_for_all_before_a_training(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a training of which a process is missing it would wait for ever. One of another start does not count."""
    monkeypatch.setattr(processes, "_MEET_SECONDS", 0.2)
    first, _ = join(0, size=3), join(1, size=3)
    join(2, size=3, attempt="1")
    with pytest.raises(UnderstudyError, match="only 2 of the 3 processes of the launcher are there"):
        first.meet()
    join(2, size=3)
    first.meet()
