"""A prompt as people read it: which of its text is the chat template's, and its first words. Uses no model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

_ROLE = re.compile(r"\s*(system|developer|user|human|assistant|model|tool|ipython)\s*(\n|$)", re.IGNORECASE)
_USERS = ("user", "human")
_TITLE = 70  # characters


@dataclass(frozen=True)
class PromptPart:
    """A piece of a prompt. `template`: special tokens and names of roles, which the chat template wrote."""

    text: str
    template: bool


def prompt_parts(tokenizer: Any, tokens: Sequence[int]) -> list[PromptPart]:
    """The text of a prompt in order. Text that a template writes without special tokens cannot be told from a user's."""
    special = {
        *tokenizer.all_special_ids,
        *(id for id, token in tokenizer.added_tokens_decoder.items() if token.special),
    }
    parts: list[PromptPart] = []
    for is_special, run in groupby(tokens, key=special.__contains__):
        text = str(tokenizer.decode(list(run)))
        opened = bool(parts) and parts[-1].template and "start" in parts[-1].text.lower()
        role = _ROLE.match(text) if opened and not is_special else None
        if role is not None:
            parts.append(PromptPart(role[0], True))
            text = text[role.end() :]
        if text:
            parts.append(PromptPart(text, is_special))
    return parts


def prompt_title(parts: Sequence[PromptPart]) -> str:
    """The first words of what the user wrote; of the whole prompt where no role is named."""
    said, by_user, role = "", "", ""
    for part in parts:
        if part.template:
            named = re.findall(r"[a-z]+", part.text.lower())
            role = next((word for word in named if word in (*_USERS, "system", "developer", "assistant", "tool")), role)
            continue
        text = " ".join(part.text.split())
        said = said or text
        by_user = by_user or (text if role in _USERS else "")
    title = by_user or said
    if len(title) <= _TITLE:
        return title
    return title[: _TITLE + 1].rsplit(" ", 1)[0][:_TITLE] + " …"


def last_characters(parts: Sequence[PromptPart], most: int) -> list[PromptPart]:
    """The end of a prompt, of at most so many characters and a sign that there was more."""
    kept: list[PromptPart] = []
    for part in reversed(parts):
        if len(part.text) > most:
            return [PromptPart("…" + part.text[len(part.text) - most :], part.template), *kept]
        kept.insert(0, part)
        most -= len(part.text)
    return kept
