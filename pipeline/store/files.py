"""JSON files, written atomically, and digests of values and files. Does not depend on artifacts."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.store.atomic import replacing
from pipeline.store.json_text import parse_json, read_text

_CHUNK = 1 << 20


def canonical_json(value: Any) -> str:
    """The canonical JSON text of `value`, for hashing: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_key(value: Any) -> str:
    """The hash of `value` in 20 hex digits (80 bits: among 10^9 artifacts, a collision has a probability below 10^-6)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:20]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_stamp(path: Path) -> list[int]:
    """Inode, size, mtime and ctime: a file with the same stamp has the same content. JSON."""
    stat = path.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_user_json(path: Path, remedy: str) -> Any:
    """Parse a file of the user. UsageError where it cannot be read or is not JSON; `remedy`: which file to give."""
    try:
        return parse_json(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}); {remedy}") from None


def check_user_file(path: Path, option: str) -> None:
    """UsageError where `path`, which `option` names, cannot be written: raised before the work whose result goes there."""
    if path.is_dir():
        problem = "is a directory; name a file"
    elif not path.parent.is_dir():
        problem = f"{path.parent} is not a directory; make it first"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "cannot be written; choose a file that can"
    else:
        return
    raise UsageError(f"{option} {path}: {problem}")


def write_user_text(path: Path, text: str, option: str) -> None:
    """Write a file where the user asked for it. UsageError naming the option where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror or error}; name a file in a directory that can be written"
        ) from None
