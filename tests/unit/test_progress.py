"""Lines of progress for log files."""

import io
import itertools
import os
import re
import sys
import threading
from types import SimpleNamespace

import pytest
import rich.console
import rich.live
from rich.console import Console

from pipeline import progress
from pipeline.progress import Progress, Words, broken, fitted


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


WORDS = Words(
    "evaluate/base-before",
    "400,000 of 1,234,567",
    "completions",
    "208,000 completions/s",
    "12 s left",
    "acceptance 0.723",
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            160,
            "  evaluate/base-before: {bar} 400,000 of 1,234,567 completions, 208,000 completions/s, 12 s left, acceptance 0.723",
        ),
        (
            110,
            "  evaluate/base-before: 400,000 of 1,234,567 completions, 208,000 completions/s, 12 s left, acceptance 0.723",
        ),
        (86, "  evaluate/base-before: 400,000 of 1,234,567 completions, 12 s left, acceptance 0.723"),
        (80, "  evaluate/base-before: 400,000 of 1,234,567 completions, 12 s left, acceptance…"),
        (60, "  evaluate/base-before: 400,000 of 1,234,567, 12 s left"),
        (45, "  evaluate/…: 400,000 of 1,234,567, 12 s left"),
    ],
)
def test_a_narrow_terminal_has_the_count_and_the_time_that_is_left(width: int, expected: str) -> None:
    """The bar goes first, then the rate, then the note, then the unit; the label is cut at last."""
    before, bar, after = fitted(WORDS, width)
    shown = expected.replace("{bar}", "━" * bar)
    assert (shown, bar > 0) == (before + "━" * bar + after, "{bar}" in expected)


def test_no_progress_line_is_wider_than_the_terminal() -> None:
    """Whatever the width; count and time are in it."""
    for width in range(36, 201):
        before, bar, after = fitted(WORDS, width)
        assert width >= len(before) + bar + len(after)
        assert WORDS.count in after
        assert WORDS.left in after


def test_a_terminal_draws_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two digits below 10 a second, as in a log file; the line is drawn by rich."""
    clock = itertools.count(0, 20)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(width=80, file=io.StringIO(), color_system=None, force_terminal=True)
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    with Progress(True).track("train", 4, "steps") as track:
        track.advance(1, "loss 2")
        drawn = "".join(segment.text for segment in console.render(track))
    assert re.fullmatch(r"  train: [━╸╺]+ 1 of 4 steps, 0\.\d+ steps/s, \d+ s left, loss 2", drawn.rstrip())


def test_an_interruption_at_the_start_of_a_bar_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that draws, and standard error as it was: a thread that writes while the process ends makes Python abort."""
    drawing, before = list[threading.Thread](), sys.stderr
    console = Console(file=io.StringIO(), force_terminal=True)

    class Interrupted(rich.live._RefreshThread):
        def start(self) -> None:
            super().start()
            drawing.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(rich.live, "_RefreshThread", Interrupted)
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    with pytest.raises(KeyboardInterrupt), Progress(True).track("train", 4, "steps"):
        pass
    drawing[0].join(30)
    assert (False, before) == (drawing[0].is_alive(), sys.stderr)


def test_a_line_on_a_terminal_is_broken_between_words() -> None:
    """A key or a path that is broken in its middle cannot be read or copied."""
    line = (
        "understudy: watch: nothing to read; name the replicas in watch.endpoints, or the deployment's log in watch.log"
    )
    path = "/a/" + "b" * 70

    assert [
        "understudy: watch: nothing to read; name the replicas in",
        "  watch.endpoints, or the deployment's log in watch.log",
    ] == broken(line, 60)
    assert ["at", f"  {path}", "  it is"] == broken(f"at {path} it is", 60)
    assert [""] == broken("", 60)


def test_a_terminal_without_a_size_is_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """`script`, `docker exec -t` and some CI give one."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    Progress(terminal=True).line("corpus: prompts.jsonl: read as JSON lines, one a row")
    assert ["corpus: prompts.jsonl: read as JSON lines, one a row"] == printed.getvalue().splitlines()
