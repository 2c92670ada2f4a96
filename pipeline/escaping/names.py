"""Names of users where MLflow takes few characters: keys of metrics, params and tags, and registered models.

A character that is not allowed becomes `_xHH_`, its number in hexadecimal, so two names stay two names. `unescaped_name` is the
way back.
"""

import hashlib
import re

MAX_KEY = 250  # characters of a key in MLflow
_NOT_IN_KEYS = re.compile(r"[^\w.\- :/]")  # MLflow's own rule; letters of every script are allowed
# MLflow reads a key as a path and refuses one that has a shorter form.
_NOT_A_PATH = re.compile(r"(?:^|(?<=/))(?:/|\.{1,2}(?=/|$))|/$")
_NOT_IN_MODELS = re.compile(r"[^A-Za-z0-9._-]")  # the name is typed in a shell and stands in paths and URLs
_LOOKS_ESCAPED = re.compile(r"_(?=x[0-9a-f])")
_ESCAPED = re.compile(r"_x([0-9a-f]+)_")
_CUT = "_x110000_"  # no character has this number: marks a name that is cut


def metric_name(name: str) -> str:
    """`name` as a key of MLflow: `gain//v1/chat` is `gain/_x2f_v1/chat`. One of more than 250 characters is cut, and ends with a
    hash of the whole."""
    shown = _NOT_A_PATH.sub(lambda match: _hex(match[0][0]) + match[0][1:], _escape(name, _NOT_IN_KEYS))
    if len(shown) <= MAX_KEY:
        return shown
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return shown[: MAX_KEY - len(_CUT) - len(digest)].rstrip("/") + _CUT + digest


def model_name(name: str) -> str:
    """`name` as part of the name of a registered model."""
    return _escape(name, _NOT_IN_MODELS)


def unescaped_name(name: str) -> str:
    """The name that `metric_name` or `model_name` was given, unless it was cut."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def _escape(name: str, forbidden: re.Pattern[str]) -> str:
    return forbidden.sub(lambda match: _hex(match[0]), _LOOKS_ESCAPED.sub(_hex("_"), name))


def _hex(character: str) -> str:
    return f"_x{ord(character):x}_"
