"""Reads and writes `acceptance.json`: the figures of an examination, then one row of counts per prompt."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.acceptance.contradictions import check_examination
from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile import counts_from_json
from pipeline.acceptance.schema import DEPLOYED, FILE, ROWS, AcceptanceProfile, parse_profile, read_profile
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.store.parsing import format_of
from pipeline.store.row_files import RowFile, read_listed_rows


@dataclass(frozen=True)
class ProfileWithCounts:
    """The profile of a draft, and the counts of its prompts at the deployment's sampling."""

    profile: AcceptanceProfile
    counts: CountTable


@dataclass(frozen=True)
class NotExamined:
    """A draft that cannot be examined: it has no counts and no tokens, and `why` states the reason."""

    profile: AcceptanceProfile
    why: str


def examined(examination: ProfileWithCounts | NotExamined) -> ProfileWithCounts:
    """The examination of a draft that has figures; else BrokenDraft with the reason."""
    if isinstance(examination, NotExamined):
        raise BrokenDraft(f"the draft cannot be examined: {examination.why}")
    return examination


def read_examination(directory: Path) -> ProfileWithCounts | NotExamined:
    """The examination in an `evaluate` artifact, row by row. UnderstudyError naming the file if it is damaged."""
    path = directory / FILE
    return _examination(
        read_profile(directory), read_listed_rows(path, ROWS, DEPLOYED, format_of(AcceptanceProfile)), str(path)
    )


def parse_examination(raw: Any, where: str) -> ProfileWithCounts | NotExamined:
    """The content of an `acceptance.json`. UnderstudyError naming `where` and the first place that is wrong."""
    profile = parse_profile(raw, where)

    def rows() -> Iterator[Any]:
        yield from raw[ROWS][DEPLOYED]

    return _examination(profile, rows(), where)


def _examination(profile: AcceptanceProfile, rows: Iterable[Any], where: str) -> ProfileWithCounts | NotExamined:
    try:
        counts = CountTable.of(counts_from_json(rows))
        check_examination(profile, counts)
        return ProfileWithCounts(profile, counts) if profile.broken is None else NotExamined(profile, profile.broken)
    except KeyError as missing:
        raise UnderstudyError(
            f"{where}: not a complete acceptance profile (no {missing}); examine the draft again"
        ) from None
    except (TypeError, ValueError) as error:
        raise UnderstudyError(
            f"{where}: not a complete acceptance profile ({error}); examine the draft again"
        ) from None


def write_profile(rows: RowFile, profile: AcceptanceProfile) -> None:
    """Write the file: `profile`, and the rows that were added to `rows`."""
    rows.write(asdict(profile), ROWS)
