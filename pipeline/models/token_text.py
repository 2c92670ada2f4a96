"""The text that each token adds. Tokens are decoded with those before them: many tokenizers drop the leading space of a single
token, and a character may take several tokens."""

from collections.abc import Sequence
from typing import Any

_MAX_BYTES = 4  # of a character in UTF-8


class TokenText:
    """Decodes token by token. The bytes of an incomplete character wait for the rest. `special`: special tokens, such as that of
    the end, have text too."""

    def __init__(self, tokenizer: Any, special: bool = False) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._tokens: list[int] = []
        self._from = self._shown = 0  # where the decoded context begins, and the first token that is not shown yet

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._from : self._shown])
        text = self._decode(self._tokens[self._from :])
        if text.endswith("\ufffd") and len(self._tokens) - self._shown < _MAX_BYTES:
            return ""
        self._from, self._shown = self._shown, len(self._tokens)
        return text[len(before) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not self._special))


def token_texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text of each token."""
    text = TokenText(tokenizer)
    return [text.add(int(token)) for token in tokens]
