"""Ways in which a file can be wrong: values of a document, bytes of its text, and what stands in its place. Seeded."""

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RAW = {  # what `json.dumps` cannot write, by the name that stands for it
    "@deep@": "[" * 600 + "]" * 600,
    "@deep object@": '{"a":' * 150 + "1" + "}" * 150,
    "@deepest@": "[" * 100_000,
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
    yield from (
        b"",
        b"\0",
        b"\n",
        b"5",
        b"null",
        b"[]",
        b"{}",
        b'"a"',
        b"\xff" * 64,
        b"[" * 100_000,
        b"9" * 5_000,
        b"NaN",
    )
    yield b"\xef\xbb\xbf" + text
    yield text.decode("utf-8", "replace").encode("utf-16")
    yield from (text[: cut.randrange(len(text))] for _ in range(4))
    for _ in range(4):
        place = cut.randrange(len(text))
        yield text[:place] + cut.choice((b"\xff", b"\0", b"\xed\xa0\x80", b"{", b'"', b"9" * 400)) + text[place + 1 :]
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
    text = json.dumps(holder[0])
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()
