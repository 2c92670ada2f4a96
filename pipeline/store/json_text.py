"""The only place that parses JSON: text of a file or an answer to values, within bounds. Does not depend on what the values mean.

Bounds: bytes of a file, levels of nesting, digits of a number. A file is a regular file: a FIFO would block its reader, and a
device has no end.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

MOST_BYTES = 1 << 30  # of a file that is parsed as a whole
MOST_LEVELS = 100  # of lists and objects in each other
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of half a character


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The UTF-8 text of a regular file, without a byte order mark. OSError with `strerror` where it cannot be read or is not a
    regular file; ValueError, in one line, where it is too large or is not UTF-8."""
    raw = read_bytes(path, most_bytes)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Raises as `read_text`."""
    with regular_file(path) as stream:
        raw = stream.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"larger than {most_bytes:,} bytes")
    return raw


@contextlib.contextmanager
def regular_file(path: Path) -> Iterator[IO[bytes]]:
    """The open file. OSError with `strerror` where it cannot be opened or is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else opening a FIFO waits for its writer
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a directory, not a file")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


def json_kind(value: Any) -> str:
    """What a value is in the words of JSON, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    kinds = ((int | float, "a number"), (str, "text"), (list, "a list"), (Mapping, "an object"), (bytes, "bytes"))
    return next((name for kind, name in kinds if isinstance(value, kind)), f"of type {type(value).__name__}")


def parse_json(text: str | bytes, *, foreign: bool = False, levels: int = MOST_LEVELS) -> Any:
    """The value of a JSON text. ValueError, in one line, for anything else.

    `foreign`: of another program, whose NaN, Infinity and repeated keys are read as Python's `json` reads them. In our own files
    each is an error, as is half of a character, which no file could hold once it is written again.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        value = json.loads(text) if foreign else _parse_own(text)
    except json.JSONDecodeError as error:
        place = f"character {error.pos + 1}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise ValueError(f"{error.msg} at {place}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise ValueError(_too_deep(levels)) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ValueError("a number is too long" if "digits" in str(error) else str(error)) from None
    check_levels(value, text, levels)
    return value


class NotJson(ValueError):
    """Text that is not JSON as far as it goes; where it ends, more of it may make it so."""


def parse_element(text: str, begin: int) -> tuple[Any, int]:
    """The JSON value that begins at a character of a foreign text, and the character after it. NotJson, or ValueError for one
    that no further text can fix. `check_levels` is up to the caller."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg) from None
    except (ValueError, RecursionError):
        raise ValueError("a number too long or brackets too deep") from None
    return value, end


def json_extent(text: str) -> Literal["whole", "begun"] | None:
    """Whether a text, such as an answer of a model, is JSON, or begins as JSON and breaks off; None for neither. Numbers may have
    any length."""
    try:
        json.loads(text, parse_int=str)
    except json.JSONDecodeError as error:
        broken_off = error.msg.startswith("Unterminated string") or len(text) - error.pos < len("false")
        return "begun" if broken_off else None
    except (ValueError, RecursionError):
        return None
    return "whole"


def check_levels(value: Any, text: str | None = None, most: int = MOST_LEVELS) -> None:
    """ValueError where lists and objects in `value` are nested more than `most` levels deep. `text`: of the JSON, if there is
    one; it usually has too few brackets for that."""
    if text is not None and text.count("[") + text.count("{") <= most:
        return
    level = [value] if type(value) in (dict, list) else []
    for _ in range(most):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
    if level:
        raise ValueError(_too_deep(most))


def _too_deep(most: int) -> str:
    return f"nested more than {most} levels deep"


def _parse_own(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    if _HALF.search(text):
        _check_characters(json.dumps(value, ensure_ascii=False))
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {name[:80]!r} appears twice in one object")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check_characters(text: str) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        text.encode()
        return
    raise ValueError("half of a character (a lone surrogate)")
