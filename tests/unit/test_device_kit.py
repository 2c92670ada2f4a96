"""The device kit: a program that does not end costs its part's time and no other part, and what a step of a training computes."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.device.kit import decoding, rehearsal, run, training
from tests.device.kit.bounded import TimedOut, run_until
from tests.device.kit.models import Setup, multiplied

# Says a line, starts a program that outlives it and has its streams, and does not end.
ENDLESS = ["sh", "-c", "echo at test 3; sleep 60 & sleep 60"]
Measures = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def test_a_program_that_ends_is_what_it_was(tmp_path: Path) -> None:
    """Exit code, and both streams apart."""
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    for until in (math.inf, time.monotonic() + 60):
        done = run_until(until, [sys.executable, "-c", code], tmp_path, {})
        assert (3, "out\n", "err\n") == (done.returncode, done.stdout, done.stderr)


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """With what it has started, and its last line is told."""
    said = r"^it had not ended when .* \(--seconds\), and was ended; its last line: at test 3$"
    with pytest.raises(TimedOut, match=said):
        run_until(time.monotonic() + 1, ENDLESS, tmp_path, {"PATH": "/usr/bin:/bin"})


def test_the_kit_goes_on_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part's file says what it was and what is left; the next part is measured, and another call tries again."""
    ends = list[bool]()

    def program(setup: Setup) -> dict[str, Any]:
        command = ["echo", "done"] if ends else ENDLESS
        return {"said": run_until(setup.until, command, tmp_path, {"PATH": "/usr/bin:/bin"}).stdout}

    def first(setup: Setup) -> Measures:
        yield "a program", lambda: program(setup)
        yield "another", lambda: {"figure": 1}

    def second(setup: Setup) -> Measures:
        yield "a figure", lambda: {"figure": 2}

    def kit(seconds: str) -> int:
        words = ["run", "1", "2", "--device", "cpu", "--out", str(tmp_path), "--seconds", seconds]
        monkeypatch.setattr(sys, "argv", words)
        return run.main()

    monkeypatch.setattr(rehearsal, "measures", first)
    monkeypatch.setattr(decoding, "measures", second)
    assert 1 == kit("1")
    found, after = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("rehearsal", "decoding"))
    assert found["errors"]["a program"].startswith("TimedOut: it had not ended when the time of its part was over")
    assert ({}, ["another"]) == (found["measures"], found["left"])
    assert 2 == after["measures"]["a figure"]["figure"]

    ends.append(True)
    assert 0 == kit("60")
    found = json.loads((tmp_path / "rehearsal.json").read_text())
    assert ("done\n", {}, []) == (found["measures"]["a program"]["said"], found["errors"], found["left"])


def test_an_interrupted_loop_has_the_time_of_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins with an empty store."""
    (left := tmp_path / "smoke" / "left").mkdir(parents=True)
    monkeypatch.setattr(rehearsal, "_MAIN", "import time; time.sleep(60)")
    setup = Setup(run.choose_device("cpu"), tiny=True, work=tmp_path, until=time.monotonic() + 1)
    with pytest.raises(TimedOut):
        rehearsal.interrupted_loop(setup, "smoke")
    assert not left.exists()


def test_a_step_of_gkd_has_the_forward_of_its_teacher() -> None:
    """2 FLOPs for a weight and a token, beside 6 for one of the draft. An embedding that only looks up rows does not count."""
    draft, teacher = "Qwen3-0.6B", multiplied("Qwen3-8B")
    assert teacher == pytest.approx(7.57e9, rel=0.001)  # of 8.19e9
    own, gkd = (training.flops_a_step(draft, training.WAYS[way], 10) for way in ("TRL SFT", "TRL GKD"))
    assert 60 * multiplied(draft) == own == pytest.approx(60 * 596e6, rel=0.001)
    assert own + 20 * teacher == gkd
