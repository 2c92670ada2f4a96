"""In which mode a chat template writes a prompt, such as with thinking: the arguments of a source or a row, and their name. Pure.

A target is another distribution in each mode, so a mode is a part of a prompt's domain where a source or a row states it: every
figure and rule of a domain is then of one mode.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.config.corpus import TEMPLATE_ARGUMENTS_OF_OURS, label_mistake
from pipeline.corpus.json_values import MOST_LEVELS
from pipeline.store.files import canonical_json
from pipeline.store.json_text import parse_json

_WORD = re.compile(r"[A-Za-z_]{1,32}")  # a date or a system text is no mode


def mode_of(arguments: Mapping[str, Any]) -> str:
    """The name of a mode, such as `enable_thinking=false`: the arguments that are true, false or a word. Empty for none. The text
    "false", which a template takes for true, keeps its quotes."""
    return ", ".join(
        f"{name}={json.dumps(value) if isinstance(value, bool) or value.lower() in ('true', 'false') else value}"
        for name, value in sorted(arguments.items())
        if isinstance(value, bool) or (isinstance(value, str) and _WORD.fullmatch(value))
    )


def domain_in_mode(domain: str, mode: str) -> str:
    """The name of a domain in a mode, such as `chat (enable_thinking=false)`."""
    return f"{domain} ({mode})" if mode else domain


def stated_arguments(value: Any) -> dict[str, Any]:
    """The template arguments that a row states: an object, or its JSON text. ValueError, with the reason, for anything else."""
    if isinstance(value, str) and value.strip():
        try:
            value = parse_json(value, foreign=True, levels=MOST_LEVELS)
        except ValueError as error:
            raise ValueError(f"is text, but not JSON: {error}") from None
    if not value:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("is not an object of arguments")
    # Columnar files put null where a key is absent.
    arguments = {name: item for name, item in value.items() if item is not None}
    if taken := sorted(set(arguments) & set(TEMPLATE_ARGUMENTS_OF_OURS)):
        raise ValueError(f"sets {taken[0]}, which Understudy sets")
    try:
        canonical_json(arguments).encode()
    except (TypeError, ValueError, RecursionError):
        raise ValueError("holds a value that JSON does not support") from None
    if mistake := label_mistake(mode_of(arguments)):
        raise ValueError(f"has {mistake}")
    return arguments
