"""What hands out parts and puts them in place: without workers."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UnderstudyError
from pipeline.running.execution.claims import Claims
from pipeline.running.execution.driver import Driver
from pipeline.running.parts import Part
from tests.fakes import quiet
from tests.unit.running.execution.work import squares


class _Track:
    """Where progress is counted."""

    done = 0.0

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The artifact's directory, and where workers write."""
    found = tmp_path / "out", tmp_path / "staging"
    for path in found:
        path.mkdir()
    return found


def _driver(places: tuple[Path, Path], count: int, claims: Any = None) -> tuple[Driver, _Track]:
    out, staging = places
    track = _Track()
    claims = claims or Claims(out.parent, "squares-1")
    return Driver(squares(count), out, staging, claims, track, quiet()), track


def _next(driver: Driver) -> Part[Any]:
    part = driver.next()
    assert part is not None
    return part


def test_the_file_that_makes_a_part_complete_is_put_in_place_last(places: tuple[Path, Path]) -> None:
    """Killed in between, the part is made again, and not read without its other file."""
    driver, _ = _driver(places, 1)
    (driver.staging / "0.b").touch()  # and the first file cannot be moved
    with pytest.raises(FileNotFoundError):
        driver.finished(_next(driver))
    assert [] == list(places[0].iterdir())


def test_a_part_that_another_finishes_before_it_is_claimed_is_not_made(places: tuple[Path, Path]) -> None:
    """It was missing when the list was made; its claim is free because it is done."""

    class Late(Claims):
        def take(self, name: str) -> bool:
            if name == "0":
                (places[0] / "0.b").touch()
            return super().take(name)

    driver, _ = _driver(places, 2, Late(places[0].parent, "squares-1"))
    assert "1" == _next(driver).name
    assert driver.next() is None
    assert ["squares-1.1.claim"] == [path.name for path in places[0].parent.glob("*.claim")]


def test_progress_counts_each_part_once(places: tuple[Path, Path]) -> None:
    """What a worker had done of a part with which it died is taken back; what it did not tell counts at the end."""
    driver, track = _driver(places, 2)
    for part in (_next(driver), _next(driver)):
        driver.advance(part, 1.0)
    assert 2.0 == track.done
    driver.died(squares(2)[1], "worker 1", "was ended")
    assert 1.0 == track.done
    again = _next(driver)
    driver.advance(again, 2.0)
    for part in squares(2):
        for name in part.files:
            (driver.staging / name).touch()
        driver.finished(part)
    assert (6.0, "1") == (track.done, again.name)


def test_deaths_are_counted_by_part(places: tuple[Path, Path]) -> None:
    """Three parts with a death each are three accidents; three deaths with one part are that part's."""
    driver, _ = _driver(places, 3)
    parts = [_next(driver) for _ in range(3)]
    for part in (*parts, *parts):
        driver.died(part, "worker 1", "was ended")
    with pytest.raises(UnderstudyError, match=r"^2: 3 workers died"):
        driver.died(parts[2], "worker 1", "was ended")
