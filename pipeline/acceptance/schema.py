"""Which `acceptance.json` this version understands. Standard library only: whatever shows a profile reads it."""

from typing import Any

from pipeline.errors import UnderstudyError

SCHEMA = 2


def checked_profile(raw: Any, where: str) -> dict[str, Any]:
    """An `acceptance.json` that this version understands; UnderstudyError naming both schemas if it is not one."""
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise UnderstudyError(
            f"{where}: an examination of schema {found}, and this version reads schema {SCHEMA}; examine the draft again "
            "(`understudy run` with the same config)"
        )
    return dict(raw)
