"""Text of users for a terminal, a log or a line of an error. What is printed goes through `pipeline.progress`, which calls this.

A character that would move the cursor, colour, hide, reorder or break a line is shown as an escape: ESC as `\\x1b`, a line break
as `\\n`, a bidi override as `\\u202e`.
"""

import unicodedata

_JOINERS = "\u200c\u200d"  # parts of words and of emoji; they reorder nothing


def printable(line: str) -> str:
    """`line` as one line: whatever is not printed as itself becomes an escape, line breaks and unusual spaces included."""
    return "".join(
        character if character.isprintable() or character in _JOINERS else _escape(character) for character in line
    )


def printable_block(text: str) -> str:
    """Text of several lines, such as a completion: line breaks, tabs and all spaces stay."""
    return "".join(
        character
        if character.isprintable()
        or character in "\n\t"
        or character in _JOINERS
        or unicodedata.category(character) == "Zs"
        else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
