"""Lines of progress for log files."""

import itertools

import pytest

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
