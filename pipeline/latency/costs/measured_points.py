"""What `understudy profile` has measured so far, in a file beside its output, so that a killed measurement can go on. Torch-free.

A point is measured in one go and written at once. Another pair, machine, dtype or number of threads has other points: `about`
says of which the file is.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pipeline.errors import UsageError
from pipeline.store.files import read_user_json, write_json
from pipeline.store.parsing import KNOWN_FIELDS_ONLY, CountKey, Format, Number

SCHEMA = 1
_REMEDY = "delete it to measure everything again"


@dataclass(frozen=True, kw_only=True)
class Point:
    """Medians in seconds at one batch size and context."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    target: dict[CountKey, Number]  # by number of tokens of the pass
    draft: Number


@dataclass(kw_only=True)
class MeasuredPoints:
    """By `batch x context`, and of prefills by prompt length. `seconds` and `worked`: wall and CPU time of all measurements."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    schema: int = SCHEMA
    about: dict[str, Any]  # what the points depend on
    points: dict[str, Point] = field(default_factory=dict)
    prefills: dict[CountKey, Number] = field(default_factory=dict)
    seconds: Number = 0.0
    worked: Number = 0.0

    @property
    def count(self) -> int:
        return len(self.points) + len(self.prefills)


FORMAT = Format(name="file of measured points", schema=SCHEMA, remedy=_REMEDY, content=TypeAdapter(MeasuredPoints))


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
    found = FORMAT.parse(read_user_json(path, _REMEDY), str(path))
    if differing := sorted(name for name in {*found.about, *about} if found.about.get(name) != about.get(name)):
        raise UsageError(
            f"{path}: measured under other conditions ({', '.join(differing)}); {_REMEDY}, or name another --out"
        )
    return found


def write_points(out: Path, points: MeasuredPoints) -> None:
    write_json(points_path(out), asdict(points))
