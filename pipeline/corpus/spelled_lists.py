"""Texts that are a chat or a list of texts as a program printed it: by Python, numpy or pandas, or as JSON of another shape.

Tables have one type of cell, so lists end up in them as text. As a prompt, the target would be asked brackets and quotes.
"""

import ast
import re
import warnings

from pipeline.store.own_files import reads_own_files

_SENDER = re.compile(
    r"""\b(?:role|from)['"]?\s?[:=]\s?['"](?:system|user|assistant|human|gpt|tool|developer)['"]""", re.IGNORECASE
)
_LONGEST = 100_000  # characters that are looked at as Python


def spelled_chat(text: str) -> bool:
    """Whether the whole text is a chat or a message as a program printed it, or the JSON of its JSON."""
    bare = text.strip()
    if bare[:1] == bare[-1:] == '"':
        bare = bare[1:-1].replace('\\"', '"').strip()
    return (
        bare[:1] in ("[", "{", "(", "a")
        and bare[-1:] in ("]", "}", ")")
        and _begins(bare)
        and bool(_SENDER.search(bare))
    )


@reads_own_files("a text of a row, whatever it is")
def spelled_texts(text: str) -> bool:
    """Whether the whole text is a list of texts, as Python or JSON writes it."""
    bare = text.strip()
    if not bare.startswith(("['", '["')) or not bare.endswith(("']", '"]')) or len(bare) > _LONGEST:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not define
            value = ast.literal_eval(bare)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _begins(bare: str) -> bool:
    return bare[0] != "a" or bare.startswith("array(")
