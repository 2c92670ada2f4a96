"""A killed profile keeps what it measured, and the next call goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import UnderstudyError
from pipeline.latency.costs import measure
from pipeline.latency.costs.measure import Grid
from pipeline.latency.costs.measured_points import points_path, read_points
from pipeline.latency.costs.profile import Profile
from pipeline.progress import Progress
from tests.fakes import tiny_llama

GRID = Grid(batches=(1, 2), gammas=1, contexts=(4, 8), prompts=(3, 6), repeats=1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The points that are measured; the third kills the process, as Ctrl-C does, the first time."""
    found: list[tuple[int, int]] = []
    real = measure.measure_forwards

    def counted(*arguments: Any, batch: int, context: int, **more: Any) -> Any:
        found.append((batch, context))
        if len(found) == 3:
            raise KeyboardInterrupt
        return real(*arguments, batch=batch, context=context, **more)

    monkeypatch.setattr(measure, "measure_forwards", counted)
    return found


def _measure(out: Path, **about: str) -> Profile:
    target, draft = (tiny_llama(seed, dtype=torch.float32) for seed in (1, 2))
    return measure.measure_profile(
        target, draft, 32, GRID, about={"pair": "tiny", **about}, progress=Progress(False), out=out
    )


def test_a_killed_measurement_goes_on_where_it_was(
    calls: list[tuple[int, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two points were measured, and stay; the other two and the prefills are measured by the second call."""
    out = tmp_path / "profile.json"
    with pytest.raises(KeyboardInterrupt):
        _measure(out)
    kept = json.loads(points_path(out).read_text())
    found = _measure(out)

    assert {"1x4", "1x8"} == set(kept["points"])
    assert [(1, 4), (1, 8), (2, 4), (2, 4), (2, 8)] == calls
    assert kept["points"]["1x8"]["target"] == {
        str(count): seconds for count, seconds in enumerate(found.target.seconds_BTC[0, :, 1].tolist(), 1)
    }
    assert f"going on after 2 measurements in {out}.measured" in capsys.readouterr().err
    assert 6 == read_points(out, kept["about"]).count
    assert 0 < found.about["processor_share"]


def test_sizes_without_memory_are_named_and_what_was_measured_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With one that fits; the call without them goes on."""
    out, real = tmp_path / "profile.json", (measure.measure_forwards, measure._prefill)

    def forwards(*arguments: Any, batch: int, **more: Any) -> Any:
        return real[0](*arguments, batch=batch, **more) if batch < 2 else _full()

    def prefill(forward: Any, vocabulary: int, length: int, repeats: int) -> float:
        return real[1](forward, vocabulary, length, repeats) if length < 4 else _full()

    monkeypatch.setattr(measure, "measure_forwards", forwards)
    with pytest.raises(
        UnderstudyError,
        match=r"^--batch-sizes = 2: out of memory; 1 fits: leave out --batch-sizes above 1, or --context-lengths from 4 on,",
    ):
        _measure(out)
    assert {"1x4", "1x8"} == set(json.loads(points_path(out).read_text())["points"])
    monkeypatch.setattr(measure, "measure_forwards", real[0])
    monkeypatch.setattr(measure, "_prefill", prefill)
    with pytest.raises(
        UnderstudyError, match=r"^--prompt-lengths = 6: out of memory; 3 fits: leave out --prompt-lengths above 3 "
    ):
        _measure(out)


def _full() -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_points_of_another_pair_are_not_taken_over(calls: list[tuple[int, int]], tmp_path: Path) -> None:
    """Nor thrown away; one line says what to do."""
    out = tmp_path / "profile.json"
    with pytest.raises(KeyboardInterrupt):
        _measure(out)
    with pytest.raises(
        UnderstudyError, match=r"profile\.json\.measured: measured under other conditions \(pair\); delete it"
    ):
        _measure(out, pair="another")
    assert 3 == len(calls)


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1, "about": {}, "points": {"1x4": {}}}'])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: str) -> None:
    """With what to do about it."""
    out = tmp_path / "profile.json"
    points_path(out).write_text(content)
    with pytest.raises(UnderstudyError, match=r"profile\.json\.measured: .*; delete it to measure everything again$"):
        read_points(out, {})
