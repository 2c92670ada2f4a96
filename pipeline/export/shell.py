"""`launch.sh`: a start command that works wherever the directory is moved to."""

import shlex
from collections.abc import Sequence

PYTHON = "${PYTHON:-python3}"  # a word: the Python in which the engine is
HERE = "@HERE@"  # stands for the directory of the script inside a word


def launch_script(comment: str, target: str | None, words: Sequence[str], before: Sequence[str] = ()) -> str:
    """A script that runs `words`, after the lines `before`. `$TARGET` is the target, by default `target`, and has no default if
    that is empty; None: the command names none. HERE in a word is the script's directory.

    Further arguments of the script are added to the command.
    """
    lines = [
        "#!/bin/sh",
        *(f"# {line}" for line in comment.splitlines()),
        f"# {'' if target is None else 'TARGET names another target; '}arguments of this script are added to the command.",
        'here=$(cd "$(dirname "$0")" && pwd) || exit 1',
        *([] if target is None else [_target(target)]),
        *before,
        *([_needs(words[2].partition(".")[0])] if words[:2] == [PYTHON, "-m"] else []),
        "exec \\",
        *(f"  {' '.join(_quoted(word) for word in line)} \\" for line in _lines(words)),
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def _target(name: str) -> str:
    return f"TARGET=${{TARGET:-{shlex.quote(name)}}}" if name else ': "${TARGET:?set TARGET to the target}"'


def _needs(module: str) -> str:
    """A line that prints what to set where PYTHON is not set and python3 does not have the engine."""
    is_there = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    said = f"launch.sh: python3 has no {module}; set PYTHON to the Python of the environment that has it"
    return f"""[ -n "$PYTHON" ] || python3 -c {shlex.quote(is_there)} || {{ echo {shlex.quote(said)} >&2; exit 1; }}"""


def _lines(words: Sequence[str]) -> list[list[str]]:
    """An option with its value on each line."""
    lines: list[list[str]] = []
    for word in words:
        if lines and lines[-1][0].startswith("-") and len(lines[-1]) == 1 and not word.startswith("-"):
            lines[-1].append(word)
        else:
            lines.append([word])
    return lines


def _quoted(word: str) -> str:
    if word in ("$TARGET", PYTHON):
        return f'"{word}"'
    parts = [shlex.quote(part) if part else "" for part in word.split(HERE)]
    return '"$here"'.join(parts)
