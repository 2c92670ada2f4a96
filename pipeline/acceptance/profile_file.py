"""Reads and writes `acceptance.json`: the figures of an examination, then one row of counts per prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.acceptance.contradictions import check_examination
from pipeline.acceptance.profile import PromptCounts, counts_from_json
from pipeline.acceptance.schema import DEPLOYED, EXAMINATION, FILE, ROWS, Profile, parse_profile
from pipeline.errors import UnderstudyError
from pipeline.store.row_files import RowFile


@dataclass(frozen=True)
class Examination:
    """The profile of a draft, and the counts of its prompts at the deployment's sampling; none for a broken draft."""

    profile: Profile
    counts: Sequence[PromptCounts]


def read_examination(directory: Path) -> Examination:
    """The examination in an `evaluate` artifact. UnderstudyError naming the file if it is damaged."""
    path = directory / FILE
    return parse_examination(EXAMINATION.read_raw(path), str(path))


def parse_examination(raw: Any, where: str) -> Examination:
    """The content of an `acceptance.json`. UnderstudyError naming `where` and the first place that is wrong."""
    profile = parse_profile(raw, where)
    try:
        counts = counts_from_json(raw[ROWS][DEPLOYED])
        check_examination(profile, counts)
        return Examination(profile, counts)
    except KeyError as missing:
        raise UnderstudyError(
            f"{where}: not a complete acceptance profile (no {missing}); examine the draft again"
        ) from None
    except (TypeError, ValueError) as error:
        raise UnderstudyError(
            f"{where}: not a complete acceptance profile ({error}); examine the draft again"
        ) from None


def write_profile(rows: RowFile, profile: Profile) -> None:
    """Write the file: `profile`, and the rows that were added to `rows`."""
    rows.write(asdict(profile), ROWS)
