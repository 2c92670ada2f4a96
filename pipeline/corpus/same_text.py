"""Which prompts have the same text for a person: one normal form for near-duplicates, splits, and what a draft was trained on.

Knows strings only, no tokens and no files. Two forms, because a duplicate is dropped and a prompt of the same split is not:

- `normalised`: what near-duplicates are compared by. Only what is certainly no content is removed.
- `text_id`: prompts with the same one are in one split, and a draft that was trained on one of them is not examined on the
  others. Punctuation does not count here: at worst two different prompts share a split.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.corpus.as_served import standard_role
from pipeline.store.files import canonical_json

_ENDS = " .?!,;:\"'“”‘’«»¿¡。、؟।"  # what people leave out, or type twice, around a sentence
_VARIATION_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))  # invisible, but combining marks by their category


def _counts(character: str) -> bool:
    """Whether a character is a part of a word: a letter, mark, digit or symbol (`a < b` is not `a + b`), not punctuation, a space
    or invisible. A backtick quotes."""
    category = unicodedata.category(character)
    return category[0] not in "PZ" and category not in ("Cc", "Cf") and character != "`"


_ASCII_DROPPED = bytes(code for code in range(128) if not _counts(chr(code)))


def normalised(text: str) -> str:
    """Compatibility forms, case, whitespace, invisible characters, and punctuation around the whole do not count.

    NFKC before and after case folding, as Unicode's compatibility caseless match (The Unicode Standard, 3.13, D146).
    """
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        invisible = [
            character
            for character in set(folded)
            if character in _VARIATION_SELECTORS or unicodedata.category(character) == "Cf"
        ]
        text = folded.translate(dict.fromkeys(map(ord, invisible))) if invisible else folded
    else:
        text = text.lower()
    text = " ".join(text.split())
    return text.strip(_ENDS) or text


def text_id(messages: Iterable[Mapping[str, Any]]) -> str:
    """16 hex digits of SHA-256 over what users and tools say in `messages`, as words.

    System messages do not count, because a deployment shares them, and neither do answers, because another draft was trained on
    other answers to the same questions. Where nobody says anything, such as a call of a tool without its result, the whole
    messages count.
    """
    messages = list(messages)
    said = [
        [standard_role(message["role"]), _words(message.get("content") or "")]
        for message in messages
        if standard_role(message["role"]) not in ("system", "assistant")
    ]
    content = said if any(words for _, words in said) else [dict(message) for message in messages]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def opening(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages up to the first answer to what somebody said: all turns of a chat have the same. An assistant's greeting is
    no answer; system messages are shared by a deployment's chats."""
    asked = False
    for number, message in enumerate(messages):
        kind = standard_role(message["role"])
        if asked and kind == "assistant":
            return messages[:number]
        asked |= kind not in ("system", "assistant")
    return messages


def _words(text: str) -> str:
    """Letters, marks, digits and symbols of the normalised text; the text itself where there are none."""
    text = normalised(text)
    if text.isascii():
        return text.encode().translate(None, _ASCII_DROPPED).decode() or text
    dropped = [character for character in set(text) if not _counts(character)]
    return text.translate(dict.fromkeys(map(ord, dropped))) or text
