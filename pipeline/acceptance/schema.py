"""The schema version of `acceptance.json`. Standard library only, because reports import it."""

from typing import Any

from pipeline.errors import UnderstudyError

SCHEMA = 2


def checked_profile(raw: Any, where: str) -> dict[str, Any]:
    """`raw` as an `acceptance.json` of this version; UnderstudyError naming both schemas otherwise."""
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise UnderstudyError(
            f"{where}: the acceptance profile has schema {found!r}, and this version reads schema {SCHEMA}; examine the draft "
            "again (`understudy run` with the same config)"
        )
    return dict(raw)
