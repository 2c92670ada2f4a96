"""JSON files, written whole or not at all, and digests of what they hold. Knows no artifact."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pipeline.errors import UnderstudyError, UsageError

_CHUNK = 1 << 20


def canonical_json(value: Any) -> str:
    """The one spelling of `value` that is hashed: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_key(value: Any) -> str:
    """20 hex digits that stand for `value` (80 bits: two in 10^9 artifacts collide with chance below 10^-6)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:20]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_json(path: Path) -> Any:
    """Parse a machine-written file; a damaged one is named."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnderstudyError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnderstudyError(f"{path}: damaged ({error}); delete it and run again") from None


def read_user_json(path: Path, remedy: str) -> Any:
    """UsageError, naming the file, where it cannot be read or is no JSON; `remedy` says what would be."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path}: this is no JSON; {remedy}") from None
