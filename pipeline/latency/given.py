"""Files that a user names, read as JSON."""

import json
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError


def read_given(path: Path, remedy: str) -> Any:
    """UsageError, naming the file, where it cannot be read or is no JSON; `remedy` says what would be."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path}: this is no JSON; {remedy}") from None
