"""Ways in which a file can be wrong: values of a document, bytes of its text, and what stands in its place; and what its reader
may answer. `tests/unit/readers` takes them one after another, seeded; hypothesis combines them (`strategies.py`)."""

import copy
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import UnderstudyError

RAW = {  # what `json.dumps` cannot write, by the name that stands for it
    "@deep@": "[" * 600 + "]" * 600,
    "@deep object@": '{"a":' * 150 + "1" + "}" * 150,
    "@deeper object@": '{"a":' * 300 + "1" + "}" * 300,
    "@deepest@": "[" * 100_000,
    "@deepest, closed@": "[" * 100_000 + "]" * 100_000,
    "@digits@": "9" * 5_000,
    "@huge@": "1e999",
    "@NaN@": "NaN",
    "@minus infinity@": "-Infinity",
    "@half@": r'"\ud800"',
    "@NUL@": r'"a\u0000b"',
    "@escape@": r'"\u001b[2J\nx"',
}
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 1e308, 10**30, 2**53, "", "abc", "../../x", "x" * 5_000),
    *([], {}, [[]], [None], {"": None}, [1, "a"], {"a": {"b": 1}}, *RAW),
)
MORE_VALUES: tuple[Any, ...] = (  # which hypothesis draws too
    *(False, 2, 3_000, 10**9, 2**63, -(2**70), 10**400),
    *(0.5, -0.0, 1e-320, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
    *(" ", "nan", "1e999", "0x1f", "-", "\x00", "a\nb", "\r", "\ud800", "é🙂", "~nobody/x"),
    *("user", "vllm", "prompts.jsonl", "reference", "target", "fitted costs", "http://user:password@host"),
    *([1, 2, 3], [3, 2, 1]),
)
TEXTS = (b"", b"\0", b"\n", b"5", b"null", b"[]", b"{}", b'"a"', b"\xff" * 64, b"[" * 100_000, b"9" * 5_000, b"NaN")
PIECES = (b"\xff", b"\0", b"\xed\xa0\x80", b"{", b'"', b"9" * 400)  # that stand in a text
MORE_PIECES = (
    *(b"", b"\xff\xfe", b"\xef\xbb\xbf", "é".encode("latin-1"), b"\x85", b"\x0b"),
    *(b"nan", b"-1", b"1e999", b"2026-99-99", b"9" * 30, b"9" * 5_000, b"x" * 200_000, b"[" * 100_000),
    *(b": ", b"- ", b"[", b"]", b"'", b"\n", b"\r", b",", b";", b"\t", b"#", b"&a ", b"*a", b"<<: ", b"? "),
    *(b"!!set ", b"!!int ", b"!!bool ", b"!!float ", b"!!timestamp ", b"!!binary ", b"0x" + b"f" * 5_000),
)
MOST_SECONDS = 60.0  # a bound on hanging, on a busy machine; a file takes milliseconds
MOST_CHARACTERS = 1_000  # of a line of an error


@contextmanager
def read_or_refused(what: str, *begins: str) -> Iterator[None]:
    """The body ends soon, and raises nothing but an UnderstudyError of short lines of printable text, each of which begins with
    one of `begins`. `what` says which damage it was."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {MOST_SECONDS:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    except UnderstudyError as error:
        for line in str(error).split("\n"):
            assert line.startswith(begins or ""), line
            assert len(line) <= MOST_CHARACTERS, line
            assert line.isprintable(), line
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}: {what}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def json_text(value: Any) -> bytes:
    """The JSON text of a damaged document, with what the names of `RAW` stand for."""
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()


def documents(valid: Any, count: int | None, seed: int) -> Iterator[bytes]:
    """Copies of a document with one value replaced, left out or written twice: all of them, or `count`."""
    places = [(path, what) for path in _paths(valid) for what in ("leave out", "twice", *range(len(VALUES)))]
    if count is not None:
        places = random.Random(seed).sample(places, min(count, len(places)))
    for path, what in places:
        yield _changed(valid, path, what)


def texts(text: bytes, seed: int) -> Iterator[bytes]:
    """Damage to the bytes of a file."""
    cut = random.Random(seed)
    yield from TEXTS
    yield b"\xef\xbb\xbf" + text
    yield text.decode("utf-8", "replace").encode("utf-16")
    yield from (text[: cut.randrange(len(text))] for _ in range(4))
    for _ in range(4):
        place = cut.randrange(len(text))
        yield text[:place] + cut.choice(PIECES) + text[place + 1 :]
    yield text + text


PLACES = ("directory", "loop", "nowhere", "FIFO", "device")


def put(what: str, path: Path) -> None:
    """Put something that is no regular file at `path`."""
    if what == "directory":
        path.mkdir()
    elif what == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to({"loop": path, "nowhere": path.with_name("nowhere"), "device": Path("/dev/zero")}[what])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:2]):  # rows are alike
            yield from _paths(inner, (*path, number))


def _changed(valid: Any, path: tuple[Any, ...], what: str | int) -> bytes:
    holder = [copy.deepcopy(valid)]
    parent: Any = holder
    for key in (0, *path)[:-1]:
        parent = parent[key]
    key = (0, *path)[-1]
    if what == "twice" and isinstance(parent, dict):
        parent["@twice@"] = parent[key]
        return json.dumps(holder[0]).replace('"@twice@"', json.dumps(key)).encode()
    if isinstance(what, int):
        parent[key] = copy.deepcopy(VALUES[what])
    elif parent is not holder:
        del parent[key]
    return json_text(holder[0])
