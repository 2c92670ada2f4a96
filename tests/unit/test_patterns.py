"""Regular expressions run over text of strangers, so each takes time linear in the length of it."""

import ast
import itertools
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pipeline
import stages
from tests.structure import nodes

LENGTH = 8_000  # characters; a linear pattern takes half a millisecond, a quadratic one from 30 to 300
_CALLS = ("compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer")
_CALL = re.compile(rf"\bre\.({'|'.join(_CALLS)})\(")
_ONE_CHARACTER = re.compile(r"\\.|\[\^?\]?(\\.|[^\]])*\]", re.DOTALL)  # of a pattern: an escape or a set
# What texts are made of, beside the characters of the pattern itself. Long runs of one piece, each also with another at its end.
PIECES = ("a", "A", "0", " ", "\n", "_", "-", ".", "/", ":", "@", "a.", "a-", "a@", "0.", "0 ", "://", "a://", "a:a", "=",
          "a=", "\\ud8", "x0", "Bearer ", "-----BEGIN PRIVATE KEY-----", "eyJ", "eyJaaaaaaaa-", "sk-a-", "a.-", "sk-",
          "token", "password=", "GB00", "(", "$",
          "a/a", "x:", "1,000", "<metadata>", "url(#", "{", "\t", "\u00e9", "_xa", "0-", "Bearer", "www.")  # fmt: skip
ENDS = ("", "!")
NOT_OF_STRANGERS = {
    r"\S*/libgomp\S*\.so\S*": "of the kernel",
    "<metadata>.*?</metadata>": "of matplotlib, which escapes <",
}


def _patterns() -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """Place, pattern and flags of each literal that `re` is called with, and how it is applied. A pattern that is put together
    from parts has no literal; one that repeats nothing takes constant time at each character."""
    for package in (pipeline, stages):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            if not _CALL.search(path.read_text(encoding="utf-8")):
                continue
            named = {id(one.value): one.targets[0] for one in nodes(path) if isinstance(one, ast.Assign)}
            for node in nodes(path):
                if _is_call(node) and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
                    pattern = node.args[0].value
                    if pattern in NOT_OF_STRANGERS or not re.search("[*+{]", _ONE_CHARACTER.sub("", pattern)):
                        continue
                    place = f"{path.relative_to(root.parent).as_posix()}:{node.lineno}"
                    yield place, pattern, _flags(node), _methods(nodes(path), node, named.get(id(node)))


def _methods(module: list[ast.AST], call: ast.Call, name: ast.expr | None) -> tuple[str, ...]:
    """How a pattern is applied: what is called of `re`, or of the name that it is assigned to; in a list, it may be anything."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "compile":
        return (call.func.attr,)
    if not isinstance(name, ast.Name):
        return ("sub",)
    found = {
        node.func.attr
        for node in module
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == name.id
    }
    return tuple(sorted(found)) or ("sub",)


def _is_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _CALLS
    )


def _flags(call: ast.Call) -> int:
    given = [*call.args[1:], *(one.value for one in call.keywords)]
    names = [part.attr for one in given for part in ast.walk(one) if isinstance(part, ast.Attribute)]
    return sum({int(getattr(re, name)) for name in names if hasattr(re.RegexFlag, name)})


def _apply(pattern: re.Pattern[str], method: str, text: str) -> None:
    if method in ("sub", "subn", "findall", "finditer", "split"):
        for _ in pattern.finditer(text):
            pass
    else:
        getattr(pattern, method)(text)


def test_time_is_linear_in_the_length_of_a_text() -> None:
    """What was matched from one beginning is not matched again from each character behind it."""
    patterns, most = list(_patterns()), _most_seconds()
    assert patterns
    assert [] == [
        f"{place}: {pattern!r}: {hanging}"
        for place, pattern, *how in patterns
        if (hanging := _hanging(most, pattern, *how))
    ]


def test_a_quadratic_pattern_is_found() -> None:
    """Or the others would prove nothing."""
    assert "search hangs on 'a' repeated" in _hanging(_most_seconds(), "a+b", 0, ("search",))


def _most_seconds() -> float:
    """A fifth of what a quadratic pattern takes on this machine now, in seconds of this process; a linear one a fiftieth."""
    began = time.process_time()
    re.search("a+b", "a" * LENGTH)
    return (time.process_time() - began) / 5


def _hanging(most: float, pattern: str, flags: int, methods: tuple[str, ...]) -> str:
    """The first text that a pattern takes too long for; empty where there is none."""
    compiled = re.compile(pattern, flags)

    def stop(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGVTALRM, stop)
    try:
        for method, piece, end in itertools.product(methods, dict.fromkeys((*PIECES, *sorted(set(pattern)))), ENDS):
            signal.setitimer(signal.ITIMER_VIRTUAL, most)
            try:
                _apply(compiled, method, piece * (LENGTH // len(piece)) + end)
            except TimeoutError:
                return f"{method} hangs on {piece!r} repeated, with {end!r} at its end"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    return ""
