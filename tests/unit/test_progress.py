"""Lines of progress for log files."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import rich.progress

from pipeline import progress
from pipeline.progress import Progress


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (20, "  train: 1 of 4 steps, 0.05 steps/s, 60 s left"),
        (0.5, "  train: 30 of 40 steps, 2 steps/s, 5 s left"),
        (0.01, "  train: 1,501 of 3,002 steps, 100 steps/s, 15 s left"),
    ],
)
def test_slow_work_has_a_rate_above_zero(
    every: float, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two digits below 10 a second. Here one step takes `every` seconds."""
    clock = itertools.count(0, every)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    total = int(expected.split(" of ")[1].split(" ")[0].replace(",", ""))
    with Progress(False).track("train", total, "steps") as track:
        while not (lines := capsys.readouterr().err.splitlines()):
            track.advance(1)
    assert [expected] == lines


def test_work_of_an_earlier_run_has_no_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that resumes counts its own steps only: 1 in 20 seconds."""
    clock = itertools.count(0, 20)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with Progress(False).track("train", 104, "steps", done=100) as track:
        track.advance(1)

    assert "  train: 101 of 104 steps, 0.05 steps/s, 60 s left\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("note", "expected"), [("", ""), ("1,200 tokens paid", ", 1,200 tokens paid")], ids=["alone", "with a note"]
)
def test_nothing_is_foreseen_before_anything_is_done(
    note: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as while servers read the first prompts: neither a rate of 0 nor endless seconds."""
    clock = itertools.count(0, 20)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with Progress(False).track("generate", 104, "tokens") as track:
        track.advance(0, note)

    assert f"  generate: 0 of 104 tokens{expected}\n" == capsys.readouterr().err


def test_a_bar_has_the_same_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two digits below 10 a second on a terminal too."""
    clock, seen = itertools.count(0, 20), []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(rich.progress.Progress, "update", lambda self, task, **shown: seen.append(shown))
    with Progress(True).track("train", 4, "steps") as track:
        track.advance(0)
        track.advance(1, "loss 2")

    expected: list[dict[str, Any]] = [
        {"advance": 0, "rate": "", "note": ""},
        {"advance": 1, "rate": "0.025/s", "note": "loss 2"},
    ]
    assert expected == seen
