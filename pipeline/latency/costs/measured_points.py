"""What `understudy profile` has measured so far, in a file beside its output, so that a killed measurement can go on. Torch-free.

A point is measured in one go and written at once. Another pair, machine, dtype or number of threads has other points: `about`
names those of the file.
"""

from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.store.files import read_user_json, write_json
from pipeline.store.parsing import CountKey, Number, format_of, stored

_REMEDY = "delete it to measure everything again"


@stored
class Point:
    """Medians in seconds at one batch size and context."""

    target: dict[CountKey, Number]  # by number of tokens of the pass
    draft: Number


@stored(frozen=False, name="file of measured points", schema=1, remedy=_REMEDY)
class MeasuredPoints:
    """What was measured by `batch x context`, and of prefills by prompt length. `seconds` and `worked`: wall and CPU time of
    all measurements."""

    about: dict[str, Any]  # what the points depend on
    points: dict[str, Point] = field(default_factory=dict)
    prefills: dict[CountKey, Number] = field(default_factory=dict)
    seconds: Number = 0.0
    worked: Number = 0.0

    @property
    def count(self) -> int:
        return len(self.points) + len(self.prefills)


def point_key(batch: int, context: int) -> str:
    return f"{batch}x{context}"


def points_path(out: Path) -> Path:
    """The file of a profile that is to be written to `out`."""
    return out.with_name(f"{out.name}.measured")


def read_points(out: Path, about: dict[str, Any]) -> MeasuredPoints:
    """What an earlier call has measured under the same conditions `about`; nothing if there was none. UsageError for a file that
    cannot be read, or is of other conditions: its measurements would be lost."""
    path = points_path(out)
    if not path.is_file():
        return MeasuredPoints(about=about)
    points = format_of(MeasuredPoints).parse(read_user_json(path, _REMEDY), str(path))
    if differing := sorted(name for name in {*points.about, *about} if points.about.get(name) != about.get(name)):
        raise UsageError(
            f"{path}: measured under other conditions ({', '.join(differing)}); {_REMEDY}, or name another --out"
        )
    return points


def write_points(out: Path, points: MeasuredPoints) -> None:
    write_json(points_path(out), asdict(points))
