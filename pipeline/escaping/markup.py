"""Text of users where some characters are markup: HTML, XML, Markdown, YAML, and charts of matplotlib. None of it is markup
there."""

import re
from typing import Any

import yaml
from markupsafe import Markup, escape

from pipeline.escaping.terminal import printable, printable_block

_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis
_BEGINS = re.compile(r"([#+=:>-]|\d+(?=[.)](\s|$)))")  # what makes of a line a heading, a list or a quotation
_LINKS = re.compile(r"(?i)\b(www)\.|:(?=//)|\b(mailto|xmpp):")  # found by GitHub without brackets


def html(text: str) -> Markup:
    """`text` in HTML, as the content of an element or the value of an attribute in quotes. What reorders or hides
    text is shown as an escape, so that it ends with its element."""
    return escape(printable_block(text))


def finalize(value: object) -> object:
    """The argument of `jinja2.Environment(finalize=...)`: every value that a template shows."""
    return html(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def xml_text(text: str) -> str:
    """`text` for an XML writer, which escapes markup but not the characters that XML forbids: these become escapes."""
    return printable_block(text)


def plot_text(text: str) -> str:
    """`text` in one line in a chart of matplotlib, which reads `$...$` as a formula."""
    return printable(text).replace("$", r"\$")


def markdown(text: str) -> str:
    """`text` in one line of Markdown, or in a cell of a table, as the reader should see it: in CommonMark, GitHub's, and the
    dialect of MLflow's descriptions."""
    shown = printable(text).strip().replace("&", "&amp;").replace("<", "&lt;")
    shown = _MARKUP.sub(lambda match: "\\" + match[0], shown)
    shown = _LINKS.sub(lambda match: match[0].replace(":", "&#58;").replace(".", "&#46;"), shown)
    begin = _BEGINS.match(shown)
    return _first(begin[0]) + shown[begin.end() :] if begin else shown


def code(text: str) -> str:
    """`text` as a code span, also in a cell of a table. A backtick is shown as an apostrophe."""
    shown = printable(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"


def yaml_text(value: Any) -> str:
    """`value` as a YAML document that can be printed and read back; as ASCII where a character of another script would reorder
    or hide text."""
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text if printable_block(text) == text else yaml.safe_dump(value, sort_keys=False)


def _first(begins: str) -> str:
    return f"&#{ord(begins)};" if len(begins) == 1 and not begins.isdigit() else f"&#{ord(begins[0])};{begins[1:]}"
