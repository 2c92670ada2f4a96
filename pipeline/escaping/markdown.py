"""Text of users in Markdown: CommonMark, GitHub's, and the dialect of MLflow's descriptions. None of it is markup or a link."""

import re

from pipeline.escaping.terminal import printable

_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis
_BEGINS = re.compile(r"([#+=:>-]|\d+(?=[.)](\s|$)))")  # what makes of a line a heading, a list or a quotation
_LINKS = re.compile(r"(?i)\b(www)\.|:(?=//)|\b(mailto|xmpp):")  # found by GitHub without brackets


def markdown(text: str) -> str:
    """`text` in one line of Markdown, or in a cell of a table, as the reader should see it."""
    shown = printable(text).strip().replace("&", "&amp;").replace("<", "&lt;")
    shown = _MARKUP.sub(lambda found: "\\" + found[0], shown)
    shown = _LINKS.sub(lambda found: found[0].replace(":", "&#58;").replace(".", "&#46;"), shown)
    found = _BEGINS.match(shown)
    return _first(found[0]) + shown[found.end() :] if found else shown


def code(text: str) -> str:
    """`text` as a code span, also in a cell of a table. A backtick is shown as an apostrophe."""
    shown = printable(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"


def _first(begins: str) -> str:
    return f"&#{ord(begins)};" if len(begins) == 1 and not begins.isdigit() else f"&#{ord(begins[0])};{begins[1:]}"
