"""Secrets in text of others: a server's error may repeat the header that it was sent, a program's output its environment.

What is printed and every error go through `without_secrets`. The values are those of this process's environment, as they are, in
base64 (also with their user, as in a header), in a URL and in JSON; other encodings are not recognised.
"""

import base64
import binascii
import functools
import json
import os
import re
from urllib.parse import quote

_SECRET_NAME = re.compile(
    r"(?i)token|secret|pass(w|phrase|code)|(^|_)pass(_|$)|pwd|api_?key|access_?key|private_?key|credential|_key$|authorization|_auth$"
    r"|_pat$|_dsn$|webhook|_hook(_|$)"
)
_RANDOM = re.compile(
    r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w+/=-]{20,}", re.ASCII
)  # one in 64 keys in base64 begins with `/`
_LOGIN = re.compile(r"://([^/@\s:]*:[^/@\s]+)@")
_LEAST = 8  # characters; a shorter value is a word like others
_HEADER = re.compile(r"\b(Bearer|Basic|Token)( +|%20)([\w+/=.~-]{6,})", re.IGNORECASE)


_named: set[str] = set()


def know_secret(variable: str) -> None:
    """Hide the value of an environment variable, whatever it is called: a config names it as that of a token."""
    _named.add(variable)


def without_secrets(text: str) -> str:
    """`text` with the values of secret variables as `[NAME]`, and those of Authorization headers as `[hidden]`."""
    for value, name in _secrets():
        if value in text:
            text = text.replace(value, f"[{name}]")
    return _HEADER.sub(_hidden, text)


def _secrets() -> list[tuple[str, str]]:
    """Values by name, the longest first: one may be part of another."""
    logins = [
        (value.strip(), name)
        for name, value in os.environ.items()
        if (name in _named and value.strip()) or (_SECRET_NAME.search(name) and _is_secret(name, value.strip()))
    ]
    # The login of a proxy stands in its address, whatever the variable is called.
    logins += [(login[1], name) for name, value in os.environ.items() for login in _LOGIN.finditer(value)]
    written = [(form, name) for value, name in logins for form in _forms(value, _user_of(name))]
    return sorted(written, key=lambda item: -len(item[0]))


def _user_of(name: str) -> str:
    """Who has the password in the variable `name`, as that of MLflow."""
    stem, _, last = name.rpartition("PASSWORD")
    return "" if last else os.environ.get(f"{stem}USERNAME") or os.environ.get(f"{stem}USER") or ""


@functools.lru_cache(maxsize=256)
def _forms(value: str, user: str) -> tuple[str, ...]:
    """A value as programs write it."""
    pairs = [value] + ([f"{user}:{value}"] if user else [])
    coded = [base64.b64encode(pair.encode(errors="surrogateescape")).decode().rstrip("=") for pair in pairs]
    return tuple(dict.fromkeys((value, quote(value, safe="", errors="replace"), json.dumps(value)[1:-1], *coded)))


def _is_secret(name: str, value: str) -> bool:
    """A path and a number of tokens are none: the variable is then where the secret is, or counts."""
    is_path = value.startswith(("/", "~", ".")) and (not _RANDOM.fullmatch(value) or os.path.exists(value))
    return len(value) >= _LEAST and not is_path and not (value.isdigit() and "token" in name.lower())


def _hidden(match: re.Match[str]) -> str:
    """What follows `Bearer`, `Basic` or `Token`, unless it is a word of a sentence or a title, or a number."""
    scheme, space, value = match.groups()
    if scheme.lower() == "basic" and not _is_login(value):
        return match[0]
    return match[0] if value.isdigit() or (value.isalpha() and value[1:].islower()) else f"{scheme}{space}[hidden]"


def _is_login(value: str) -> bool:
    """Whether `value` is `user:password` in base64."""
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
