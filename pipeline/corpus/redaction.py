"""Replaces personal data and secrets in the texts of a row by plain rules, before anything of it is stored.

Rules find what has a form of its own: keys, tokens, e-mail addresses, long numbers, IP addresses. They do not find names or
addresses. docs/logs.md lists them.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

_Replace = Callable[[re.Match[str]], str]


_LONG = 10**6  # the smallest number of 7 digits


def _zeros(match: re.Match[str]) -> str:
    """The text with each digit as 0: it keeps its length, so a draft sees text of the same shape."""
    return re.sub(r"\d", "0", match[0])


def _value(match: re.Match[str]) -> str:
    return f"{match[1]}<SECRET>"


# In this order: a key may look like a number, and an assignment may hold a key. A name or scheme that can be long is tried at its
# beginning only and never in parts (`++`): the time is then linear in the length of a text.
_RULES: tuple[tuple[str, re.Pattern[str], str | _Replace], ...] = (
    (
        "key",
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
        "<PRIVATE KEY>",
    ),
    # From the beginning of a word on, so that one with many `eyJ` is read once.
    ("token", re.compile(r"(?<![\w-])((?:(?!\beyJ)[\w-])*+)eyJ[\w-]{8,}+\.[\w-]{8,}\.[\w-]*"), r"\1<TOKEN>"),
    (
        "key",
        re.compile(
            r"\b(?:(?:sk|pk|rk)[-_][\w-]{16,}|gh[opsu]_\w{20,}|npm_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|xox[abeprs]-[\w-]{10,}"
            r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,})"
        ),
        "<KEY>",
    ),
    (
        "token",
        re.compile(r"\b(Bearer\s+|Authorization:\s*\w+\s+)[\w.~+/=-]{16,}", re.I),
        lambda match: f"{match[1]}<TOKEN>",
    ),
    (
        "secret",
        re.compile(
            r"((?<![^\W_])(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token)[\"']?\s*[:=]\s*[\"']?)"
            r"(?:(?<=\")[^\"\n<]{4,}(?=\")|(?<=')[^'\n<]{4,}(?=')|[^\s\"',;<]{4,})",
            re.I,
        ),
        _value,
    ),
    # A token by its name, where the value does not look like a word.
    ("secret", re.compile(r"((?<![^\W_])token[\"']?\s*[:=]\s*[\"']?)(?=[a-z_-]*\d)[\w-]{12,}", re.I), _value),
    (
        "secret",
        re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]++://[^\s:/@]+:)[^\s/@]+(?=@)", re.I),
        _value,
    ),  # a password in a URL
    ("e-mail", re.compile(r"(?<![\w.+%-])[\w.+%-]++@[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,}\b"), "<EMAIL>"),
    ("address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), _zeros),
    ("number", re.compile(r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){3,7}(?:[ ]?[A-Z0-9]{1,3})?\b"), _zeros),  # IBAN
    # Telephone, card and account numbers: from 7 digits; no dates.
    ("number", re.compile(r"(?<![\w.])(?!\d{4}-\d\d-\d\d(?!\d))\+?\(?\d(?:[ ().-]{0,2}\d){6,}(?!\w)"), _zeros),
)


def redact(value: Any, counts: Counter[str], numbers: bool = False) -> Any:
    """`value` (JSON) with every text in it redacted; `counts` counts what was replaced, by kind. Keys of mappings stay.

    `numbers`: long ones become 0. So do those in arguments of tool calls; others are times and counts.
    """
    if isinstance(value, str):
        return redact_text(value, counts)
    if isinstance(value, Mapping):
        return {key: redact(item, counts, numbers or key == "arguments") for key, item in value.items()}
    if numbers and type(value) is int and abs(value) >= _LONG:
        counts["number"] += 1
        return 0
    return [redact(item, counts, numbers) for item in value] if isinstance(value, list) else value


def redact_text(text: str, counts: Counter[str]) -> str:
    """`text` with what the rules find replaced; `counts` counts it, by kind."""
    for kind, pattern, by in _RULES:
        text, count = pattern.subn(by, text)
        if count:
            counts[kind] += count
    return text


def has_private(text: str) -> bool:
    """Whether the rules find anything in a text."""
    return any(pattern.search(text) for _, pattern, _ in _RULES)
